"""What stands under deploy/ fits the programs: metrics, flags and the systemd unit."""
import json
import os
import re
import subprocess
import tempfile
import unittest
import urllib.request

import yaml

import lowerd_testing as t

DEPLOY = os.path.join(t.SOURCE, "deploy")


def read(*path):
    with open(os.path.join(DEPLOY, *path)) as file:
        return file.read()


def expressions():
    """PromQL of all alerts and panels, by where it stands."""
    out = {}
    for group in yaml.safe_load(read("prometheus", "alerts.yaml"))["groups"]:
        for rule in group["rules"]:
            out["alert " + rule["alert"]] = rule["expr"]
    for panel in json.loads(read("prometheus", "lowerd-dashboard.json"))["panels"]:
        for target in panel["targets"]:
            out["panel %s %s" % (panel["title"], target["refId"])] = target["expr"]
    return out


class PrometheusTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with t.Server("--http", "127.0.0.1:0") as server:
            out = os.path.join(server.folder.name, "out")
            assert server.lower(t.MODEL, ["features.3"], out).code == 0
            url = re.search(r"status page on (\S+)", server.log()).group(1)
            with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
                cls.text = answer.read().decode()
        cls.names = set(re.findall(r"^(lowerd_\w+)", cls.text, re.M))

    def test_every_metric_of_alerts_and_dashboard_is_served(self):
        found = expressions()
        self.assertGreater(len(found), 20)
        for where, expression in found.items():
            names = set(re.findall(r"\blowerd_\w+", expression))
            self.assertTrue(names or "up{" in expression, where)
            self.assertLessEqual(names, self.names, where)

    def test_labels_that_they_select_and_group_by_are_served(self):
        for where, expression in expressions().items():
            for label, value in re.findall(r'(\w+)="(\w+)"', expression):
                if label == "job":
                    continue
                self.assertIn('%s="%s"' % (label, value), self.text, where)
            for labels in re.findall(r"by \(([^)]*)\)", expression):
                for label in set(labels.split(", ")) - {"instance"}:
                    self.assertIn(label + '="', self.text, where)

    def test_metrics_have_help_and_bounded_labels(self):
        for name in re.findall(r"^# TYPE (\S+)", self.text, re.M):
            self.assertRegex(self.text, r"(?m)^# HELP %s \S" % name)
        labels = set(re.findall(r'[{,](\w+)="', self.text))
        self.assertLessEqual(labels, {"method", "code", "reason", "phase", "cause", "le", "version",
                                      "libtorch"})


class ConfigTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lowerd-deploy-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-keyout", os.path.join(cls.folder, "key"),
                        "-out", os.path.join(cls.folder, "cert")],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check(self, *flags):
        done = subprocess.run([t.program("lowerd"), "--check-config", *flags],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def with_certificates(self, text):
        text = re.sub(r"/etc/lowerd/tls/[\w.-]+\.key", os.path.join(self.folder, "key"), text)
        return re.sub(r"/etc/lowerd/tls/[\w.-]+\.(pem|crt)", os.path.join(self.folder, "cert"), text)

    def check_file(self, text):
        path = os.path.join(self.folder, "lowerd.toml")
        with open(path, "w") as file:
            file.write(self.with_certificates(text))
        self.check("--config", path)

    def test_configuration_for_systemd_is_usable(self):
        self.check_file(read("systemd", "lowerd.toml"))

    def test_configuration_for_kubernetes_is_usable_and_its_probes_exist(self):
        documents = list(yaml.safe_load_all(read("kubernetes", "lowerd.yaml")))
        by_kind = {document["kind"]: document for document in documents}
        config = by_kind["ConfigMap"]["data"]["lowerd.toml"]
        self.check_file(config)
        container = by_kind["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertIn(container[probe]["httpGet"]["path"], ("/healthz", "/readyz"))
        for port in container["ports"]:
            self.assertIn(':%d"' % port["containerPort"], config)
        self.assertEqual(len(list(yaml.safe_load_all(read("kubernetes", "service-monitor.yaml")))),
                         1)

    def test_flags_of_the_compose_file_are_usable(self):
        service = yaml.safe_load(read("compose.yaml"))["services"]["lowerd"]
        self.check("--data-dir", self.folder,
                   *[self.with_certificates(flag) for flag in service["command"]])

    def test_systemd_understands_every_line_of_the_unit(self):
        unit = os.path.join(self.folder, "lowerd.service")
        with open(unit, "w") as file:
            file.write(read("systemd", "lowerd.service").replace("/usr/bin/lowerd",
                                                                 t.program("lowerd")))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        complaints = [line for line in done.stdout.splitlines() if "lowerd.service" in line]
        self.assertEqual(complaints, [], done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
