"""The HTTP listener as a browser, a probe and Prometheus see it."""
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
import unittest
import urllib.error
import urllib.request

import grpc
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import lowerd_testing as t

load = t.protos()
lowering = load("lowerd.v1.lowering_pb2")
operations = load("google.longrunning.operations_pb2")
operations_grpc = load("google.longrunning.operations_pb2_grpc")

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></title><script>alert(1)</script>'&\""


def http_url(server):
    return re.search(r"status page on (http://\S+)", server.log()).group(1)


def get(url):
    """(status, body) of a page."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(server):
    """Values by "name{labels}"."""
    status, body = get(http_url(server) + "/metrics")
    assert status == 200, body
    lines = [line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def browser(javascript=True):
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=1200,900"):
        options.add_argument(flag)
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not javascript:
        options.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2})
    return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)


def lower(server, out, *targets):
    done = server.lower(t.MODEL, targets, os.path.join(server.folder.name, out), formats="pt")
    assert done.code == 0, done.err


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = t.Server("--http", "127.0.0.1:0").start()
        cls.addClassCleanup(cls.server.__exit__)
        lower(cls.server, "first", "features.3", "classifier")
        cls.url = http_url(cls.server)
        cls.channel = grpc.insecure_channel(cls.server.address)
        cls.addClassCleanup(cls.channel.close)
        listed = operations_grpc.OperationsStub(cls.channel).ListOperations(
            operations.ListOperationsRequest())
        cls.operation = listed.operations[0].name
        cls.scripted = browser()
        cls.addClassCleanup(cls.scripted.quit)
        cls.plain = browser(javascript=False)
        cls.addClassCleanup(cls.plain.quit)

    def open(self, driver, path):
        driver.get(self.url + path)
        return driver.find_element(By.TAG_NAME, "body").text

    def assert_no_complaints(self, driver):
        self.assertEqual([entry for entry in driver.get_log("browser")
                          if entry["level"] == "SEVERE" and "favicon" not in entry["message"]], [])

    def test_overview_shows_operations_workers_cache_and_store_also_without_javascript(self):
        for driver in (self.scripted, self.plain):
            text = self.open(driver, "/")
            for wanted in (self.operation, "DONE", "workers busy", "0 of 2", "cache hits", "store"):
                self.assertIn(wanted, text)
            self.assert_no_complaints(driver)

    def test_page_without_javascript_runs_no_script_and_reloads_itself(self):
        self.open(self.plain, "/")
        refresh = self.plain.find_elements(By.CSS_SELECTOR, "meta[http-equiv=refresh]")
        self.assertEqual(len(refresh), 1)
        self.open(self.scripted, "/")
        self.assertEqual(self.scripted.find_elements(By.CSS_SELECTOR, "meta[http-equiv=refresh]"),
                         [])

    def test_new_operations_appear_without_a_reload(self):
        self.open(self.scripted, "/")
        self.scripted.execute_script("window.sameDocument = true")
        rows = len(self.scripted.find_elements(By.TAG_NAME, "tr"))
        lower(self.server, "live", "features.%d" % (5 + rows))
        WebDriverWait(self.scripted, 30).until(
            lambda d: len(d.find_elements(By.TAG_NAME, "tr")) > rows)
        self.assertTrue(self.scripted.execute_script("return window.sameDocument"))
        self.assertEqual(self.scripted.find_element(By.ID, "connection").text, "live")
        self.assert_no_complaints(self.scripted)

    def test_operation_page_shows_the_module_tree_with_lowered_modules_coloured(self):
        for driver in (self.scripted, self.plain):
            text = self.open(driver, "/" + self.operation)
            self.assertIn("MobileNetV2", text)
            lowered = driver.find_elements(By.CSS_SELECTOR, ".tree .lowered > .node")
            self.assertEqual([e.find_element(By.TAG_NAME, "code").text for e in lowered],
                             ["classifier", "3"])
            kept = driver.find_element(By.XPATH, "//span[@class='node'][code='features']")
            self.assertNotEqual(lowered[0].value_of_css_property("background-color"),
                                kept.value_of_css_property("background-color"))
            self.assertIn("mobilenet_v2.lowered.pt", text)

    def test_type_name_is_looked_up_through_the_form(self):
        manifest = t.read_manifest(os.path.join(self.server.folder.name, "first"))
        module = manifest["loweredModules"][1]
        for driver in (self.scripted, self.plain):
            self.open(driver, "/")
            driver.find_element(By.NAME, "q").send_keys(module["loweredType"] + ".forward")
            driver.find_element(By.TAG_NAME, "button").click()
            WebDriverWait(driver, 30).until(lambda d: "/names?" in d.current_url)
            text = driver.find_element(By.TAG_NAME, "body").text
            for wanted in (module["loweredType"], module["path"], self.operation):
                self.assertIn(wanted, text)

    def test_what_a_caller_asks_for_comes_back_escaped(self):
        quoted = urllib.request.quote(HOSTILE)
        for path in ("/names?q=" + quoted, "/operations/" + quoted):
            status, body = get(self.url + path)
            self.assertEqual(status, 404, path)
            self.assertIn("&lt;img src=x onerror=", body)
            for raw in ("<img", "<script>alert", "</title><script>"):
                self.assertNotIn(raw, body)
            self.open(self.scripted, path)
            self.assertNotEqual(self.scripted.title, "owned")

    def test_other_paths_and_methods_are_refused(self):
        self.assertEqual(get(self.url + "/nosuch")[0], 404)
        self.assertEqual(get(self.url + "/operations/nosuch")[0], 404)
        request = urllib.request.Request(self.url + "/", data=b"x", method="POST")
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=30)

    def test_headers_forbid_inline_scripts_and_framing(self):
        with urllib.request.urlopen(self.url + "/", timeout=30) as answer:
            policy = answer.headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
            self.assertIn(part, policy)
        self.assertNotIn("unsafe", policy)


class HostileStateTest(unittest.TestCase):
    def test_names_that_are_markup_show_as_text(self):
        # No client gets such names past the checks; the page must not rely on that.
        with t.Server("--http", "127.0.0.1:0") as server:
            lower(server, "out", "features.3")
            server.stop()
            with sqlite3.connect(os.path.join(server.data_dir, "state.db")) as database:
                (result,) = database.execute("SELECT result FROM operations").fetchone()
                response = lowering.LowerModelResponse.FromString(bytes.fromhex(result))
                module = response.manifest.lowered_modules[0]
                module.path = HOSTILE.replace(".", "")
                module.backend = module.original_type = module.lowered_type = HOSTILE
                response.manifest.model.type = HOSTILE
                response.manifest.verifications[0].result = HOSTILE
                response.manifest.artifacts[0].file_name = HOSTILE
                database.execute("UPDATE operations SET client = ?, result = ?",
                                 (HOSTILE, response.SerializeToString().hex()))
                database.execute("UPDATE type_names SET module_path = ?, original_type = ?,"
                                 " operation = ?", (HOSTILE, HOSTILE, HOSTILE))
            database.close()
            os.truncate(server.log_path, 0)
            server.start()
            url = http_url(server)
            name = re.search("operations/[0-9a-f]{32}", get(url)[1]).group(0)
            base = t.read_manifest(os.path.join(server.folder.name, "out"))
            lowered_type = base["loweredModules"][0]["loweredType"]
            driver = browser()
            self.addCleanup(driver.quit)
            for path in ("/", "/" + name, "/names?q=" + lowered_type):
                status, body = get(url + path)
                self.assertEqual(status, 200, path)
                self.assertNotIn("<img", body, path)
                self.assertNotIn("<script>", body, path)
                driver.get(url + path)
                self.assertIn("<img src=x", driver.find_element(By.TAG_NAME, "body").text)
                self.assertEqual(driver.find_elements(By.TAG_NAME, "img"), [], path)
                self.assertNotEqual(driver.title, "owned")


class MetricsTest(unittest.TestCase):
    def test_calls_jobs_cache_and_transfers_are_counted(self):
        with t.Server("--http", "127.0.0.1:0") as server:
            lower(server, "a", "features.3")
            lower(server, "b", "features.3")
            failed = server.lower(t.MODEL, ["nosuch"], os.path.join(server.folder.name, "c"))
            self.assertEqual(failed.error()[1], "MODULE_NOT_FOUND")
            found = metrics(server)
            self.assertEqual(found['lowerd_jobs_total{reason="OK"}'], 1)
            self.assertEqual(found['lowerd_jobs_total{reason="MODULE_NOT_FOUND"}'], 1)
            self.assertEqual(
                found['lowerd_grpc_calls_total'
                      '{code="OK",method="/lowerd.v1.LoweringService/LowerModel"}'], 3)
            self.assertEqual(
                found['lowerd_grpc_call_seconds_count'
                      '{method="/lowerd.v1.LoweringService/LowerModel"}'], 3)
            for phase in ("LOWERING", "SERIALIZING", "VERIFYING"):
                self.assertEqual(found['lowerd_job_phase_seconds_count{phase="%s"}' % phase], 1)
            for phase in ("QUEUED", "LOADING"):
                self.assertEqual(found['lowerd_job_phase_seconds_count{phase="%s"}' % phase], 2)
            size = os.path.getsize(t.MODEL)
            self.assertGreaterEqual(found["lowerd_blob_received_bytes_total"], size)
            self.assertGreaterEqual(found["lowerd_blob_sent_bytes_total"], size)
            self.assertGreaterEqual(found["lowerd_store_bytes"], size)
            self.assertEqual(found["lowerd_workers"], 2)
            self.assertEqual(found["lowerd_running_jobs"], 0)

    def test_ends_of_workers_are_counted_by_cause(self):
        with t.Server("--http", "127.0.0.1:0") as server:
            done = server.lower(t.MODEL, ["features.3"], os.path.join(server.folder.name, "a"),
                                "--timeout", "1ms")
            self.assertEqual(done.error()[1], "DEADLINE_EXCEEDED", done.err)
            self.assertEqual(metrics(server)['lowerd_worker_ends_total{cause="deadline"}'], 1)


class LogTest(unittest.TestCase):
    def test_each_call_and_job_is_one_json_line_with_operation_client_and_trace(self):
        with t.Server("--http", "127.0.0.1:0", "--log-format", "json") as server:
            lower(server, "first", "features.3")
            lowering_grpc = load("lowerd.v1.lowering_pb2_grpc")
            manifest = t.read_manifest(os.path.join(server.folder.name, "first"))
            digest = manifest["model"]["digest"]
            request = lowering.LowerModelRequest(targets=[lowering.Target(path="features.5")])
            request.model.hash = digest["hash"]
            request.model.size_bytes = int(digest["sizeBytes"])
            trace = "4bf92f3577b34da6a3ce929d0e0e4736"
            with grpc.insecure_channel(server.address) as channel:
                operation = lowering_grpc.LoweringServiceStub(channel).LowerModel(
                    request, metadata=[("traceparent", "00-%s-00f067aa0ba902b7-01" % trace)])
                operations_grpc.OperationsStub(channel).WaitOperation(
                    operations.WaitOperationRequest(name=operation.name))
            server.stop()
            lines = [json.loads(line) for line in server.log().splitlines()]
            call = [line for line in lines if line["message"] == "call ended"
                    and line["method"].endswith("/LowerModel")][-1]
            job = [line for line in lines if line["message"] == "job ended"][-1]
            for line in (call, job):
                self.assertEqual(line["operation"], operation.name)
                self.assertEqual(line["trace_id"], trace)
                self.assertEqual(line["client"], "ipv4:127.0.0.1")
                self.assertGreater(float(line["seconds"]), 0)
            self.assertEqual(call["code"], "OK")
            self.assertEqual(job["reason"], "OK")


class HealthTest(unittest.TestCase):
    def test_draining_server_is_alive_but_not_ready(self):
        with t.Server("--http", "127.0.0.1:0", "--drain-grace", "60s") as server:
            url = http_url(server)
            self.assertEqual(get(url + "/healthz"), (200, "ok\n"))
            self.assertEqual(get(url + "/readyz"), (200, "ok\n"))
            # An upload that does not end keeps the server draining.
            with grpc.insecure_channel(server.address) as channel:
                uploads = load("google.bytestream.bytestream_pb2_grpc").ByteStreamStub(channel)
                messages = load("google.bytestream.bytestream_pb2")
                go_on = []

                def stream():
                    name = "uploads/u/blobs/%s/5" % ("0" * 64)
                    yield messages.WriteRequest(resource_name=name, data=b"a")
                    while not go_on:
                        time.sleep(0.02)

                call = uploads.Write.future(stream())
                deadline = time.monotonic() + 30
                while metrics(server)["lowerd_blob_received_bytes_total"] == 0:
                    self.assertLess(time.monotonic(), deadline)
                server.process.send_signal(signal.SIGTERM)
                while get(url + "/readyz")[0] == 200:
                    self.assertLess(time.monotonic(), deadline)
                self.assertEqual(get(url + "/readyz"), (503, "the server is draining\n"))
                self.assertEqual(get(url + "/healthz")[0], 200)
                go_on.append(True)
                call.cancel()
            self.assertEqual(server.process.wait(60), 0)

    def test_watchdog_hears_of_the_server_only_while_workers_can_start(self):
        with t.Server() as server:
            worker = os.path.join(server.folder.name, "lowerd-worker")
            with open(t.program("lowerd-worker"), "rb") as source, open(worker, "wb") as copy:
                copy.write(source.read())
            os.chmod(worker, 0o755)
            server.stop()
            path = os.path.join(server.folder.name, "notify")
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
                notified.bind(path)
                notified.settimeout(60)
                process = subprocess.Popen(
                    server.command() + ["--worker-program", worker, "--backend-lib",
                                        t.BACKEND_LIBRARY],
                    env=dict(os.environ, NOTIFY_SOCKET=path, WATCHDOG_USEC="600000"),
                    stderr=subprocess.DEVNULL)
                self.addCleanup(process.wait)
                self.addCleanup(process.kill)
                self.assertIn(b"READY=1", notified.recv(4096))
                for _ in range(3):
                    self.assertEqual(notified.recv(4096), b"WATCHDOG=1")
                os.unlink(worker)
                for child in t.children(process.pid):
                    os.kill(child, signal.SIGKILL)
                # A few more may be on their way; then none for longer than the watchdog waits.
                notified.settimeout(3)
                with self.assertRaises(socket.timeout):
                    for _ in range(100):
                        notified.recv(4096)
                self.assertIsNone(process.poll())


class FlagTest(unittest.TestCase):
    def check(self, *flags):
        return subprocess.run([t.program("lowerd"), "--check-config", "--data-dir", "/nonexistent"] +
                              list(flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_listener_beyond_loopback_is_refused_without_tls(self):
        refused = self.check("--http", "0.0.0.0:9464")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--http", refused.stderr)
        self.assertIn("--allow-insecure", refused.stderr)
        self.assertEqual(self.check("--http", "127.0.0.1:9464").returncode, 0)
        self.assertEqual(self.check("--http", "0.0.0.0:9464", "--allow-insecure").returncode, 0)

    def test_address_that_is_none_is_refused(self):
        for address in ("9464", "unix:/x", "127.0.0.1:port"):
            self.assertEqual(self.check("--http", address).returncode, 2, address)


if __name__ == "__main__":
    unittest.main()
