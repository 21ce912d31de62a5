"""lowerctl against a real server: the contract of flags, files, exit codes and error lines."""
import hashlib
import json
import os
import tempfile
import unittest

import lowerd_testing as t


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = t.Server().start()
        cls.addClassCleanup(cls.server.__exit__)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lowerd-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_lower_writes_artifacts_and_a_manifest_that_agrees_with_them(self):
        out = self.path("out")
        result = self.server.lower(t.MODEL, ["features.1", "classifier"], out)
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertEqual(sorted(os.listdir(out)),
                         ["manifest.json", "mobilenet_v2.lowered.ff", "mobilenet_v2.lowered.pt",
                          "mobilenet_v2.lowered.ptl"])
        manifest = t.read_manifest(out)
        self.assertEqual(manifest["model"]["digest"]["hash"], sha256(t.MODEL))
        self.assertEqual([m["path"] for m in manifest["loweredModules"]],
                         ["classifier", "features.1"])
        for artifact in manifest["artifacts"]:
            path = os.path.join(out, artifact["fileName"])
            self.assertEqual(artifact["digest"]["hash"], sha256(path))
            self.assertEqual(int(artifact["digest"]["sizeBytes"]), os.path.getsize(path))

    def test_the_same_command_gives_the_same_bytes_from_the_cache_and_without_it(self):
        folders = [self.path(n) for n in "abc"]
        for folder, extra in zip(folders, ([], [], ["--no-cache"])):
            self.assertEqual(self.server.lower(t.MODEL, ["features.2"], folder, *extra).code, 0)
        for name in os.listdir(folders[0]):
            digests = {sha256(os.path.join(f, name)) for f in folders}
            self.assertEqual(len(digests), 1, name)

    def test_json_prints_the_result_and_nothing_else(self):
        result = self.server.lowerctl("--json", "lower", t.MODEL, "--target", "classifier", "--out",
                                      self.path("out"))
        self.assertEqual((result.code, result.err), (0, ""))
        json.loads(result.out)
        result = self.server.lowerctl("--json", "backends")
        self.assertIn("reference", [b["name"] for b in json.loads(result.out)["backends"]])

    def test_no_target_means_the_root(self):
        out = self.path("out")
        self.assertEqual(self.server.lower(t.MODEL, [], out, formats="pt").code, 0)
        modules = t.read_manifest(out)["loweredModules"]
        self.assertEqual(len(modules), 1)
        self.assertEqual(modules[0].get("path", ""), "")

    def test_server_verifies_outputs_on_sample_inputs(self):
        out = self.path("out")
        result = self.server.lower(t.MODEL, ["features.3"], out, "--inputs", t.MODEL_INPUTS)
        self.assertEqual((result.code, result.err), (0, ""))
        checks = [v["check"] for v in t.read_manifest(out)["verifications"]]
        self.assertTrue([c for c in checks if c.startswith("outputs")], checks)

    def rejects(self, expected, result):
        self.assertEqual((result.code,) + result.error()[:2], expected, result.err)

    def test_rejections_have_the_reason_and_exit_code_of_the_contract(self):
        out = self.path("out")
        lower = self.server.lower
        self.rejects((3, "NOT_FOUND", "MODULE_NOT_FOUND"), lower(t.MODEL, ["features.99"], out))
        self.rejects((3, "NOT_FOUND", "MODULE_NOT_FOUND"), lower(t.MODEL, ["clasifier"], out))
        self.rejects((3, "NOT_FOUND", "BACKEND_NOT_FOUND"), lower(t.MODEL, ["classifier=no"], out))
        self.rejects((3, "NOT_FOUND", "METHOD_NOT_FOUND"),
                     lower(t.MODEL, ["classifier"], out, "--method", "backward"))
        self.rejects((3, "INVALID_ARGUMENT", "OVERLAPPING_TARGETS"),
                     lower(t.MODEL, ["features", "features.1"], out))
        for name, data in (("empty.pt", b""), ("text.pt", b"hello world, this is no model\n" * 40)):
            with open(self.path(name), "wb") as file:
                file.write(data)
            self.rejects((3, "INVALID_ARGUMENT", "MODEL_NOT_TORCHSCRIPT"),
                         lower(self.path(name), ["a"], out))
        with open(t.MODEL, "rb") as file:
            half = file.read()[:900000]
        with open(self.path("half.pt"), "wb") as file:
            file.write(half)
        self.rejects((3, "INVALID_ARGUMENT", "MODEL_CORRUPT"), lower(self.path("half.pt"), ["a"], out))
        self.assertFalse(os.path.exists(out) and os.listdir(out), "something was written")
        # And the server goes on.
        self.assertEqual(lower(t.MODEL, ["classifier"], out, formats="pt").code, 0)

    def test_a_wrong_path_suggests_the_nearest_one(self):
        result = self.server.lower(t.MODEL, ["clasifier"], self.path("out"))
        self.assertIn("classifier", result.error()[2])

    def test_bad_usage_is_exit_2(self):
        for arguments in (["lower"], ["nosuch"], ["lower", self.path("absent.pt")],
                          ["lower", t.MODEL, "--format", "onnx"], ["lower", t.MODEL, "--nosuch"]):
            result = self.server.lowerctl(*arguments)
            self.assertEqual(result.code, 2, arguments)

    def test_unreachable_server_is_exit_4(self):
        result = t.lowerctl("--server", "127.0.0.1:1", "health")
        self.rejects((4, "UNAVAILABLE", "SERVER_UNAVAILABLE"), result)

    def test_put_and_get_keep_the_bytes(self):
        result = self.server.lowerctl("put", t.MODEL_INPUTS)
        self.assertEqual(result.code, 0, result.err)
        digest = "%s/%d" % (sha256(t.MODEL_INPUTS), os.path.getsize(t.MODEL_INPUTS))
        self.assertIn(digest, result.out)
        got = self.path("got")
        self.assertEqual(self.server.lowerctl("get", digest, "-o", got).code, 0)
        self.assertEqual(sha256(got), sha256(t.MODEL_INPUTS))
        absent = "%s/%d" % (hashlib.sha256(b"absent").hexdigest(), 6)
        result = self.server.lowerctl("get", absent, "-o", self.path("no"))
        self.assertEqual(result.code, 3, result.err)
        self.assertFalse(os.path.exists(self.path("no")))

    def test_detached_operation_can_be_watched_and_listed(self):
        result = self.server.lowerctl("lower", t.MODEL, "--target", "features.4", "--detach",
                                      "--no-cache")
        self.assertEqual(result.code, 0, result.err)
        name = result.out.strip()
        self.assertTrue(name.startswith("operations/"), name)
        self.assertEqual(self.server.lowerctl("ops", "watch", name).code, 0)
        self.assertIn(name, self.server.lowerctl("ops", "list").out)
        got = self.server.lowerctl("--json", "ops", "get", name)
        self.assertTrue(json.loads(got.out)["done"])

    def test_names_of_a_manifest_resolve_to_where_they_came_from(self):
        out = self.path("out")
        self.assertEqual(self.server.lower(t.MODEL, ["features.5"], out, formats="pt").code, 0)
        module = t.read_manifest(out)["loweredModules"][0]
        for name in (module["loweredType"], module["wrapperType"],
                     module["loweredType"] + ".__setstate__"):
            result = self.server.lowerctl("--json", "names", "resolve", name)
            self.assertEqual(result.code, 0, result.err)
            origin = json.loads(result.out)["origins"][0]
            self.assertEqual(origin["modulePath"], "features.5")
            self.assertEqual(origin["model"]["hash"], sha256(t.MODEL))
        result = self.server.lowerctl("names", "resolve", "torch.jit.LoweredModule.no.such")
        self.rejects((3, "NOT_FOUND", "RESOURCE_NOT_FOUND"), result)

    def test_inspect_and_plan_tell_without_lowering(self):
        result = self.server.lowerctl("inspect", t.MODEL)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("classifier", result.out)
        plan = json.loads(self.server.lowerctl("--json", "plan", t.MODEL, "--target",
                                               "features.6").out)
        out = self.path("out")
        self.assertEqual(self.server.lower(t.MODEL, ["features.6"], out, formats="pt").code, 0)
        self.assertEqual(plan["modules"][0]["loweredType"],
                         t.read_manifest(out)["loweredModules"][0]["loweredType"])

    def test_health_and_version(self):
        health = self.server.lowerctl("health")
        self.assertEqual(health.code, 0, health.err)
        self.assertIn("SERVING", health.out)
        version = self.server.lowerctl("version")
        self.assertEqual(version.code, 0, version.err)
        self.assertIn("libtorch", version.out)


if __name__ == "__main__":
    unittest.main()
