"""What must hold when things go wrong: killed workers, killed servers, wrong configurations."""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import lowerd_testing as t

SLOW_MODEL = os.path.join(t.SOURCE, "test", "models", "endless_setstate.pt")


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("timed out: " + what)
        time.sleep(0.01)


def digests(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            out[name] = hashlib.sha256(file.read()).hexdigest()
    return out


class FaultsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lowerd-faults-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def detach(self, server, model, *args):
        result = server.lowerctl("lower", model, "--detach", "--no-cache", *args)
        self.assertEqual(result.code, 0, result.err)
        return result.out.strip()

    def operation(self, server, name):
        result = server.lowerctl("--json", "ops", "get", name)
        self.assertEqual(result.code, 0, result.err)
        return json.loads(result.out)

    def state(self, server, name):
        return self.operation(server, name)["metadata"]["state"]

    def test_endless_model_ends_at_its_deadline_and_the_server_goes_on(self):
        with t.Server(workers=1) as server:
            result = server.lower(SLOW_MODEL, ["b"], self.path("out"), "--timeout", "2s")
            self.assertEqual((result.code,) + result.error()[:2],
                             (5, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"))
            self.assertEqual(server.lower(t.MODEL, ["classifier"], self.path("out")).code, 0)

    def test_cancelling_a_running_job_ends_it_at_once(self):
        with t.Server(workers=1) as server:
            name = self.detach(server, SLOW_MODEL, "--target", "b")
            until(lambda: self.state(server, name) == "LOADING", "the job runs")
            self.assertEqual(server.lowerctl("ops", "cancel", name).code, 0)
            until(lambda: self.operation(server, name).get("done"), "the operation ends", 10)
            self.assertEqual(self.operation(server, name)["error"]["code"], 1)
            self.assertEqual(server.lower(t.MODEL, ["classifier"], self.path("out")).code, 0)

    def test_crashed_job_process_is_tried_again_then_reported_and_the_next_job_runs(self):
        with t.Server(workers=1) as server:
            name = self.detach(server, SLOW_MODEL, "--target", "b")
            killed = set()

            def kill_busy_child():
                for pid in t.grandchildren(server.process.pid):
                    if pid not in killed and t.cpu_ticks(pid) > 30:
                        os.kill(pid, signal.SIGSEGV)
                        killed.add(pid)
                return self.operation(server, name).get("done")
            until(kill_busy_child, "the operation ends")
            self.assertEqual(len(killed), 2, "tried twice")
            self.assertIn("WORKER_CRASHED", json.dumps(self.operation(server, name)))
            self.assertEqual(server.lower(t.MODEL, ["classifier"], self.path("out")).code, 0)

    def test_killed_zygote_is_replaced(self):
        with t.Server(workers=1) as server:
            for pid in t.children(server.process.pid):
                os.kill(pid, signal.SIGKILL)
            result = server.lower(t.MODEL, ["classifier"], self.path("out"))
            self.assertEqual(result.code, 0, result.err)

    def test_acknowledged_operations_survive_kill_9(self):
        with t.Server(workers=1) as server:
            names = [self.detach(server, t.MODEL, "--target", "features.%d" % i) for i in range(8)]
            server.kill()
            server.start()
            for name in names:
                result = server.lowerctl("ops", "watch", name)
                self.assertEqual(result.code, 0, result.err)
                self.assertIn("response", self.operation(server, name))

    def test_clients_survive_a_restart_of_the_server(self):
        with t.Server(workers=1) as server:
            port = server.address.rsplit(":", 1)[1]
            server.listen = "127.0.0.1:" + port
            name = self.detach(server, SLOW_MODEL, "--target", "b", "--timeout", "8s")
            watch = subprocess.Popen([t.program("lowerctl"), "--server", server.address,
                                      "--retries", "10", "ops", "watch", name], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True)
            until(lambda: self.state(server, name) == "LOADING", "the job runs")
            server.kill()
            put = subprocess.Popen([t.program("lowerctl"), "--server", server.address, "--retries",
                                    "10", "put", t.MODEL], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
            time.sleep(1)
            server.start()
            out, err = put.communicate(timeout=60)
            self.assertEqual(put.returncode, 0, err)
            _, err = watch.communicate(timeout=120)
            self.assertEqual(watch.returncode, 5, err)
            self.assertIn("DEADLINE_EXCEEDED", err)

    def test_bytes_and_names_are_the_same_from_any_server_and_worker_count(self):
        seen = []
        for workers in (1, 2):
            with t.Server(workers=workers) as server:
                out = self.path("out%d" % workers)
                self.assertEqual(server.lower(t.MODEL, ["features.1", "features.4"], out).code, 0)
                seen.append(digests(out))
        self.assertEqual(seen[0], seen[1])

    def test_sigterm_drains_and_exits_0(self):
        server = t.Server().start()
        self.addCleanup(server.__exit__)
        self.assertEqual(server.stop(), 0)

    def test_full_disk_is_told_and_frees_itself(self):
        folder = self.path("small")
        os.mkdir(folder)
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run(sudo + ["mount", "-t", "tmpfs", "-o", "size=12m,mode=1777", "tmpfs", folder],
                       check=True)
        self.addCleanup(subprocess.run, sudo + ["umount", "-l", folder])
        big = self.path("big")
        with open(big, "wb") as file:
            file.write(os.urandom(16 << 20))
        with t.Server(data_dir=os.path.join(folder, "data"), workers=1) as server:
            for _ in range(3):
                refused = server.lowerctl("put", big)
                self.assertEqual((refused.code,) + refused.error()[:2],
                                 (5, "RESOURCE_EXHAUSTED", "STORE_FULL"))
            self.assertLess(shutil.disk_usage(folder).used, 4 << 20, "nothing half written stays")
            result = server.lower(t.MODEL, ["classifier"], self.path("out"))
            self.assertEqual(result.code, 0, result.err)

    def test_artifacts_that_do_not_fit_together_are_an_error(self):
        with t.Server("--blob-limit", "5MiB", workers=1) as server:
            result = server.lower(t.MODEL, ["classifier"], self.path("out"))
            self.assertEqual((result.code,) + result.error()[:2],
                             (5, "RESOURCE_EXHAUSTED", "STORE_FULL"))

    def test_nothing_is_left_behind(self):
        server = t.Server().start()
        self.addCleanup(server.__exit__)
        self.assertEqual(server.lower(t.MODEL, ["classifier"], self.path("out")).code, 0)
        below = t.children(server.process.pid) + t.grandchildren(server.process.pid)
        self.assertTrue(below)
        server.kill()
        until(lambda: not [p for p in below if os.path.exists("/proc/%d" % p)], "workers are gone")

    def test_second_server_on_one_data_dir_refuses_and_says_so(self):
        with t.Server() as server:
            second = t.Server(data_dir=server.data_dir)
            self.addCleanup(second.folder.cleanup)
            done = subprocess.run(second.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=120)
            self.assertEqual(done.returncode, 1)
            self.assertIn("another lowerd", done.stderr)

    def test_second_server_on_one_unix_socket_refuses_and_the_first_goes_on(self):
        first = t.Server()
        first.listen = "unix:" + self.path("socket")
        with first:
            second = t.Server()
            second.listen = first.listen
            self.addCleanup(second.folder.cleanup)
            done = subprocess.run(second.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=120)
            self.assertEqual(done.returncode, 1)
            self.assertIn("another server", done.stderr)
            self.assertEqual(first.lowerctl("health").code, 0)

    def test_wrong_configurations_are_refused_in_one_line(self):
        lowerd = t.program("lowerd")
        cases = (
            (["--listen", "0.0.0.0:0"], "without TLS"),
            (["--listen", "nowhere"], "HOST:PORT"),
            (["--backend-lib", "/nonexistent/lib.so"], "/nonexistent/lib.so"),
            (["--worker-program", "/nonexistent/worker"], "/nonexistent/worker"),
            (["--tls-cert", t.MODEL], "key"),
            (["--tls-cert", t.MODEL, "--tls-key", t.MODEL], "PEM certificate"),
            (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
            (["--listen", "127.example.com:1"], "without TLS"),
            (["--state", "mysql://x"], "postgresql"),
            (["--blobs", "ftp://x"], "grpc"),
            (["--blobs", "grpc://far.example.com:1"], "without TLS"),
            (["--blob-limit", "-5"], "--blob-limit"),
            (["--job-timeout", "0s"], "positive"),
            (["--worker-program", t.MODEL], "executed"),
            (["--token-file", t.MODEL], "TLS"),
            (["--policy", t.MODEL], "--tls-cert"),
            (["--workers", "0"], "--workers"),
            (["--nonsense"], "--nonsense"),
            (["--job-timeout", "2h", "--max-job-timeout", "1h"], "job-timeout"),
        )
        for flags, expected in cases:
            done = subprocess.run([lowerd, "--data-dir", self.path("data")] + flags,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 2, flags)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(expected, done.stderr)
        for text in ("tls-client-cc = 'x'\n", "{{{\n", "[section]\nworkers = 1\n"):
            with open(self.path("config.toml"), "w") as file:
                file.write(text)
            done = subprocess.run([lowerd, "--data-dir", self.path("data"), "--config",
                                   self.path("config.toml"), "--check-config"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2, text)
        done = subprocess.run([lowerd, "--data-dir", self.path("data"), "--check-config"],
                              stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0)

    def test_library_that_is_no_backend_stops_the_start_and_is_named(self):
        library = self.path("libbroken.so")
        shutil.copyfile(t.MODEL, library)
        done = subprocess.run([t.program("lowerd"), "--data-dir", self.path("data"), "--listen",
                               "127.0.0.1:0", "--backend-lib", library],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        self.assertIn("libbroken.so", done.stderr)


class TlsTest(unittest.TestCase):
    """Certificates made on the spot by openssl."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lowerd-tls-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

        def run(*command):
            subprocess.run(["openssl"] + list(command), cwd=cls.folder, check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
            "-subj", "/CN=test ca", "-days", "2")
        with open(os.path.join(cls.folder, "ext"), "w") as file:
            file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        # A certificate for 0 days ends as it begins; newer openssl makes none that ends before.
        for name in ("server", "farm", "expired"):
            run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", name + ".key", "-out",
                name + ".csr", "-subj", "/CN=" + name)
            run("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", name + ".pem", "-days",
                "0" if name == "expired" else "2", "-extfile", "ext")
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "stranger.key", "-out",
            "stranger.pem", "-subj", "/CN=stranger", "-days", "2")

    def file(self, name):
        return os.path.join(self.folder, name)

    def test_mutual_tls_lets_in_who_has_a_certificate_and_nobody_else(self):
        with t.Server("--tls-cert", self.file("server.pem"), "--tls-key", self.file("server.key"),
                      "--tls-client-ca", self.file("ca.pem")) as server:
            ca = ["--tls-ca", self.file("ca.pem")]
            own = ["--tls-cert", self.file("farm.pem"), "--tls-key", self.file("farm.key")]
            good = server.lowerctl(*(ca + own + ["health"]))
            self.assertEqual(good.code, 0, good.err)
            self.assertEqual(server.lowerctl(*(ca + ["health"])).code, 4)
            self.assertEqual(server.lowerctl("health").code, 4)
            for name in ("expired", "stranger"):
                own = ["--tls-cert", self.file(name + ".pem"), "--tls-key", self.file(name + ".key")]
                refused = server.lowerctl(*(ca + own + ["health"]), timeout=300)
                self.assertEqual((refused.code, refused.error()[0]), (4, "UNAVAILABLE"))
            wrong_ca = ["--tls-ca", self.file("stranger.pem")]
            self.assertEqual(server.lowerctl(*(wrong_ca + own + ["health"]), timeout=300).code, 4)

    def test_half_written_certificates_leave_the_last_good_ones_in_force(self):
        for name in ("server.pem", "server.key"):
            shutil.copy(self.file(name), self.file("live-" + name))
        flags = ["--tls-ca", self.file("ca.pem")]
        with t.Server("--tls-cert", self.file("live-server.pem"), "--tls-key",
                      self.file("live-server.key")) as server:
            def serves():
                return server.lowerctl(*flags, "health").code == 0
            self.assertTrue(serves())
            self.write("live-server.pem", "garbage")
            server.process.send_signal(signal.SIGHUP)
            until(lambda: "in force stay" in server.log(), "the garbage is noticed")
            time.sleep(5)
            self.assertTrue(serves(), "the last good certificate is in force")
            # The new certificate comes before its key.
            for name in ("farm.pem", "farm.key"):
                with open(self.file(name)) as file:
                    self.write("live-server." + name.split(".")[1], file.read())
                server.process.send_signal(signal.SIGHUP)
                time.sleep(1)
                self.assertTrue(serves())
            until(lambda: "have changed and are in force" in server.log(), "the new pair is taken")
            time.sleep(5)
            self.assertTrue(serves(), "with the new certificate")

    def test_expired_server_certificate_is_refused_at_the_start(self):
        done = subprocess.run([t.program("lowerd"), "--data-dir", self.file("data"), "--tls-cert",
                               self.file("expired.pem"), "--tls-key", self.file("expired.key")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("expired", done.stderr)

    def write(self, name, text):
        with open(self.file(name + ".new"), "w") as file:
            file.write(text)
        os.rename(self.file(name + ".new"), self.file(name))

    def test_tokens_and_policy_with_the_real_client(self):
        def token_line(name, token, expires="never"):
            return "%s %s sha256:%s\n" % (name, expires, hashlib.sha256(token.encode()).hexdigest())
        self.write("tokens", token_line("farm", "s3cret") + token_line("dev", "d3v") +
                   token_line("late", "l4te", "2020-01-01"))
        self.write("policy", json.dumps({"name": "test", "allow_rules": [
            {"name": "farm", "source": {"principals": ["farm"]}},
            {"name": "developers look", "source": {"principals": ["dev"]},
             "request": {"paths": ["/lowerd.v1.LoweringService/ListBackends"]}}]}))
        for name, token in (("farm", "s3cret"), ("dev", "d3v"), ("late", "l4te"), ("no", "x")):
            self.write("token." + name, token + "\n")
        with t.Server("--tls-cert", self.file("server.pem"), "--tls-key", self.file("server.key"),
                      "--token-file", self.file("tokens"), "--policy", self.file("policy")) as server:
            def call(token, *command):
                flags = ["--token-file", self.file("token." + token)] if token else []
                return server.lowerctl("--tls-ca", self.file("ca.pem"), *flags, *command)
            lowered = call("farm", "lower", t.MODEL, "--target", "classifier", "--out",
                           self.file("out"))
            self.assertEqual(lowered.code, 0, lowered.err)
            self.assertEqual(call("dev", "backends").code, 0)
            for token, code in (("dev", "PERMISSION_DENIED"), ("late", "UNAUTHENTICATED"),
                                ("no", "UNAUTHENTICATED"), (None, "UNAUTHENTICATED")):
                refused = call(token, "ops", "list")
                self.assertEqual((refused.code, refused.error()[0]), (4, code), refused.err)
            self.write("tokens", token_line("farm", "changed"))
            server.process.send_signal(signal.SIGHUP)
            until(lambda: call("farm", "backends").code == 4, "the new tokens are in force")


if __name__ == "__main__":
    unittest.main()
