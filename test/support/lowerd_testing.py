"""Runs the real programs for tests written in Python.

Where the programs are comes from the environment, which CTest sets: LOWERD_BIN_DIR, LOWERD_LIB_DIR and
LOWERD_SOURCE_DIR.
"""
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

BIN = os.environ["LOWERD_BIN_DIR"]
LIB = os.environ["LOWERD_LIB_DIR"]
SOURCE = os.environ["LOWERD_SOURCE_DIR"]
BACKEND_LIBRARY = os.path.join(LIB, "liblowerd_backend_reference.so")
MODEL = os.path.join(SOURCE, "test", "models", "mobilenet_v2.pt")
MODEL_INPUTS = os.path.join(SOURCE, "test", "models", "mobilenet_v2.inputs.pt")
START_SECONDS = 120

ERROR_LINE = re.compile(r"^lowerctl: ([A-Z_]+) \[([A-Z_]*)\]: (.+)$")


def program(name):
    return os.path.join(BIN, name)


class Result:
    """Of one lowerctl call."""

    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def error(self):
        """(gRPC code, reason, message) of the one error line."""
        lines = self.err.splitlines()
        match = ERROR_LINE.match(lines[0]) if len(lines) == 1 else None
        if match is None:
            raise AssertionError("not one error line: %r" % self.err)
        return match.groups()


class Server:
    """A lowerd on a port of its own; a context manager. Its data folder outlives restarts."""

    def __init__(self, *flags, data_dir=None, workers=2, log_level="info"):
        self.folder = tempfile.TemporaryDirectory(prefix="lowerd-test-")
        self.data_dir = data_dir or os.path.join(self.folder.name, "data")
        self.flags = list(flags)
        self.workers = workers
        self.log_level = log_level
        self.process = None
        self.listen = "127.0.0.1:0"
        self.address = None
        self.log_path = os.path.join(self.folder.name, "log")

    def command(self):
        return [program("lowerd"), "--listen", self.listen, "--address-file", self.address_file(),
                "--data-dir", self.data_dir, "--workers", str(self.workers),
                "--log-level", self.log_level] + self.flags

    def address_file(self):
        return os.path.join(self.folder.name, "address")

    def start(self):
        if os.path.exists(self.address_file()):
            os.unlink(self.address_file())
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)
        end = time.monotonic() + START_SECONDS
        while not os.path.exists(self.address_file()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("lowerd did not start:\n" + self.log())
            time.sleep(0.02)
        with open(self.address_file()) as file:
            self.address = file.read().strip()
        return self

    def log(self):
        with open(self.log_path, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def stop(self, sig=signal.SIGTERM, seconds=60):
        """Returns the exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("lowerd did not stop:\n" + self.log())
        self.process = None
        return code

    def kill(self):
        self.stop(signal.SIGKILL)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()

    def lowerctl(self, *args, timeout=120, stdin=None):
        return lowerctl("--server", self.address, *args, timeout=timeout, stdin=stdin)

    def lower(self, model, targets, out, *args, formats="pt,ptl,ff", timeout=120):
        command = ["lower", model]
        for target in targets:
            command += ["--target", target]
        return self.lowerctl(*command, "--format", formats, "--out", out, *args, timeout=timeout)


def lowerctl(*args, timeout=120, stdin=None):
    environment = {k: v for k, v in os.environ.items() if k != "LOWERD_SERVER"}
    return Result(subprocess.run([program("lowerctl")] + [str(a) for a in args],
                                 stdin=subprocess.DEVNULL if stdin is None else stdin,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 timeout=timeout, env=environment))


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json")) as file:
        return json.load(file)


def _stat(pid):
    """Fields of /proc/PID/stat behind the name; None if the process is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None


def children(pid):
    """Ids of the living children of `pid`."""
    out = []
    for entry in os.listdir("/proc"):
        stat = _stat(int(entry)) if entry.isdigit() else None
        if stat is not None and stat[0] != "Z" and int(stat[1]) == pid:
            out.append(int(entry))
    return out


def grandchildren(pid):
    """lowerd's grandchildren are the processes of its jobs: zygotes stand between."""
    return [below for child in children(pid) for below in children(child)]


def cpu_ticks(pid):
    """CPU time of the process in clock ticks; 0 if it is gone."""
    stat = _stat(pid)
    return int(stat[11]) + int(stat[12]) if stat is not None else 0


_generated = None


def protos():
    """Compiles our public protos with grpc_tools and returns a function that imports by name."""
    global _generated
    if _generated is None:
        from grpc_tools import protoc
        import grpc_tools
        _generated = tempfile.TemporaryDirectory(prefix="lowerd-protos-")
        root = os.path.join(SOURCE, "proto")
        files = []
        for base, _, names in os.walk(root):
            files += [os.path.join(base, n) for n in names if n.endswith(".proto")]
        include = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
        includes = ["-I" + root] + ["-I" + p for p in (include, "/usr/include") if os.path.isdir(p)]
        if protoc.main(["protoc"] + includes + ["--python_out=" + _generated.name,
                                                "--grpc_python_out=" + _generated.name] +
                       sorted(files)) != 0:
            raise AssertionError("grpc_tools could not compile the protos")
        sys.path.insert(0, _generated.name)
        importlib.invalidate_caches()
    return importlib.import_module
