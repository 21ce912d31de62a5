"""A private PostgreSQL for tests written in Python: started here, gone at the end, no network."""
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
import time


class Postgres:
    """A context manager. PostgreSQL refuses to run as root, so root runs it as user postgres."""

    def __init__(self):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"),
                       key=lambda path: int(path.split("/")[-2]))
        if not found:
            raise AssertionError("PostgreSQL is not installed; run deploy/install-deps.sh test")
        self.bin = found[-1]
        self.folder = tempfile.mkdtemp(prefix="lowerd-postgres-")
        self.user = None
        if os.geteuid() == 0:
            self.user = "postgres"
            entry = pwd.getpwnam(self.user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        self.databases = 0
        self.process = None

    def command(self, program, *args):
        prefix = ["setpriv", "--reuid", self.user, "--regid", self.user, "--init-groups",
                  "--pdeathsig", "QUIT"] if self.user else []
        return prefix + [os.path.join(self.bin, program)] + list(args)

    def run(self, program, *args):
        done = subprocess.run(self.command(program, *args), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=self.folder)
        if done.returncode != 0:
            raise AssertionError("%s: %s" % (program, done.stdout))

    def __enter__(self):
        data = os.path.join(self.folder, "data")
        self.run("initdb", "-D", data, "-A", "trust", "-U", "lowerd", "--no-sync")
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.process = subprocess.Popen(
            self.command("postgres", "-D", data, "-k", self.folder, "-c", "listen_addresses="),
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.folder)
        end = time.monotonic() + 60
        ready = self.command("pg_isready", "-q", "-h", self.folder)
        while subprocess.run(ready, cwd=self.folder).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("PostgreSQL did not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.send_signal(3)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self):
        """Its postgresql:// address."""
        self.databases += 1
        name = "db%d" % self.databases
        self.run("createdb", "-h", self.folder, "-U", "lowerd", name)
        return "postgresql:///%s?host=%s&user=lowerd" % (name, self.folder)
