"""What the programs link, and what they say of themselves."""
import os
import subprocess
import unittest

import lowerd_testing as t


def libraries(path):
    out = subprocess.run(["ldd", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split()[0] for line in out.splitlines()]


class LinksTest(unittest.TestCase):
    def test_server_and_client_do_not_link_libtorch(self):
        for name in ("lowerd", "lowerctl"):
            bad = [l for l in libraries(t.program(name)) if "torch" in l or "libc10" in l]
            self.assertEqual(bad, [], name)

    def test_worker_links_libtorch_but_not_grpc(self):
        found = libraries(t.program("lowerd-worker"))
        self.assertTrue([l for l in found if "libtorch" in l])
        self.assertEqual([l for l in found if "grpc" in l], [])

    def test_workers_load_no_library_that_libtorch_does_not_use(self):
        def worker_libraries():
            with t.Server(workers=1) as server:
                with open(f"/proc/{t.children(server.process.pid)[0]}/maps", encoding="utf-8") as file:
                    return {line.split()[-1] for line in file if ".so" in line}

        def unused(paths):
            return [p for p in paths if "/libopencv_" in p and "/unused_libraries/" not in p]

        listed = [l for l in libraries(t.program("lowerd-worker")) if "opencv" in l]
        self.assertEqual(unused(worker_libraries()), [])
        # The operator's folders go first.
        os.environ["LD_LIBRARY_PATH"] = "/usr/lib/x86_64-linux-gnu"
        self.addCleanup(os.environ.pop, "LD_LIBRARY_PATH")
        self.assertEqual(bool(unused(worker_libraries())), bool(listed))

    def test_reference_backend_needs_only_libtorch(self):
        out = subprocess.run(["readelf", "-d", t.BACKEND_LIBRARY], stdout=subprocess.PIPE,
                             text=True, check=True).stdout
        needed = [l for l in out.splitlines() if "NEEDED" in l]
        bad = [l for l in needed if any(x in l for x in ("absl", "proto", "grpc", "lowerd"))]
        self.assertEqual(bad, [])

    def test_torch_headers_stay_in_their_folders(self):
        allowed = ("src/lowering/", "src/backends/", "server/worker_main.cc")
        bad = []
        for top in ("src", "server", "client"):
            for base, _, names in os.walk(os.path.join(t.SOURCE, top)):
                for name in names:
                    path = os.path.relpath(os.path.join(base, name), t.SOURCE)
                    if path.startswith(allowed):
                        continue
                    with open(os.path.join(t.SOURCE, path), encoding="utf-8") as file:
                        if "<torch/" in file.read():
                            bad.append(path)
        self.assertEqual(bad, [])

    def test_versions_and_help(self):
        for name in ("lowerd", "lowerctl"):
            for flag in ("--version", "--help"):
                done = subprocess.run([t.program(name), flag], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), (name, flag))
                self.assertIn(name, done.stdout)


if __name__ == "__main__":
    unittest.main()
