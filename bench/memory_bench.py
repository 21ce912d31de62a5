"""The server's memory during a large upload, large reads and a job on a large model, and its time to start.

    LOWERD_BIN_DIR=build/release/bin LOWERD_LIB_DIR=build/release/lib LOWERD_SOURCE_DIR=$PWD \
    PYTHONPATH=test/support /usr/bin/python3 bench/memory_bench.py [upload] [job] [start]

Memory is that of lowerd itself: what it holds (RssAnon, sampled) and all that is resident (VmHWM, which includes
pages of mapped blobs and libraries). The data directory is in /dev/shm. Reading back checks offsets beyond 4 GiB.
"""
import hashlib
import os
import random
import sys
import tempfile
import threading
import time
import warnings

import grpc

import farm
import lowerd_testing as t

warnings.filterwarnings("ignore")
MIB = 1 << 20
BLOB_BYTES = (4 << 30) + 12345
PATTERN = random.Random(1).randbytes(16 * MIB)
MODEL_BYTES = 512 * MIB
BLOBS = 1_000_000


def show(name, value, unit, note=""):
    print("%-66s %9.2f %-5s %s" % (name, value, unit, note))
    sys.stdout.flush()


def status(pid, field):
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    raise AssertionError(field)


class Watch:
    """Largest memory of a process, in MiB, above what it has now."""

    def __init__(self, pid):
        self.pid = pid
        with open("/proc/%d/clear_refs" % pid, "w") as file:
            file.write("5")
        self.anonymous_before = self.anonymous = status(pid, "RssAnon")
        self.before = status(pid, "VmRSS")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while not self.ended.wait(0.02):
            self.anonymous = max(self.anonymous, status(self.pid, "RssAnon"))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def show(self, what):
        show(what + ": held above idle", self.anonymous - self.anonymous_before, "MiB", "<= 64")
        show(what + ": resident above idle", status(self.pid, "VmHWM") - self.before, "MiB",
             "idle %.0f" % self.before)


def expected(offset, size):
    out = bytearray()
    while len(out) < size:
        at = (offset + len(out)) % len(PATTERN)
        out += PATTERN[at:at + size - len(out)]
    return bytes(out)


def upload():
    sha = hashlib.sha256()
    left = BLOB_BYTES
    while left:
        sha.update(PATTERN[:left])
        left -= min(left, len(PATTERN))
    name = "blobs/%s/%d" % (sha.hexdigest(), BLOB_BYTES)

    def messages():
        for at in range(0, BLOB_BYTES, MIB):
            size = min(MIB, BLOB_BYTES - at)
            yield farm.bytestream.WriteRequest(
                resource_name="uploads/1/" + name, write_offset=at, data=expected(at, size),
                finish_write=at + size == BLOB_BYTES)
    with t.Server(workers=1) as server, farm.Farm(server.address) as client:
        client.upload(b"warm")
        with Watch(server.process.pid) as watch:
            start = time.monotonic()
            done = client.stream.Write(messages())
            seconds = time.monotonic() - start
        assert done.committed_size == BLOB_BYTES
        show("upload of %d bytes by a Python client" % BLOB_BYTES, BLOB_BYTES / seconds / MIB, "MiB/s")
        watch.show("upload of 4 GiB")
        with Watch(server.process.pid) as watch:
            for offset, limit in ((0, 10), ((4 << 30) - 7, 20), (4 << 30, 1), ((4 << 30) + 1, 0),
                                  (BLOB_BYTES - 1, 100), (BLOB_BYTES, 0),
                                  ((4 << 30) - 300 * MIB, 300 * MIB)):
                data = b"".join(r.data for r in client.stream.Read(farm.bytestream.ReadRequest(
                    resource_name=name, read_offset=offset, read_limit=limit)))
                size = min(limit or BLOB_BYTES, BLOB_BYTES - offset)
                assert data == expected(offset, size), (offset, limit)
            at = 0
            for response in client.stream.Read(farm.bytestream.ReadRequest(resource_name=name)):
                assert response.data == expected(at, len(response.data)), at
                at += len(response.data)
            assert at == BLOB_BYTES
        watch.show("reading 4 GiB back")


def job():
    import torch
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "large.pt")

        class Large(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Linear(4096, MODEL_BYTES // 4 // 4096)
                self.b = torch.nn.ReLU()

            def forward(self, x):
                return self.b(self.a(x))
        torch.jit.script(Large()).save(path)
        with t.Server(workers=1) as server:
            assert server.lower(os.path.join(t.SOURCE, "test", "models", "tiny.pt"), ["a"],
                                os.path.join(folder, "warm")).code == 0
            with Watch(server.process.pid) as watch:
                done = server.lower(path, ["b"], os.path.join(folder, "out"), formats="pt,ptl",
                                    timeout=600)
            assert done.code == 0, done.err
            watch.show("upload, job and download, model of 512 MiB")


def seconds_to_serving(data_dir, *flags):
    server = t.Server(*flags, data_dir=data_dir, workers=1)
    start = time.monotonic()
    with server:
        with farm.Farm(server.address) as client:
            client.channel.unary_unary("/grpc.health.v1.Health/Check",
                                       request_serializer=lambda b: b,
                                       response_deserializer=lambda b: b)(b"", wait_for_ready=True)
        return time.monotonic() - start


def start():
    with tempfile.TemporaryDirectory() as data_dir:
        show("start to SERVING, empty", min(seconds_to_serving(data_dir) for _ in range(3)), "s", "< 1")
        cas = os.path.join(data_dir, "blobs", "cas")
        first = os.path.join(data_dir, "one")
        with open(first, "wb") as file:
            file.write(b"x")
        for i in range(BLOBS):
            name = hashlib.sha256(b"%d" % i).hexdigest()
            folder = os.path.join(cas, name[:2])
            if i < 5000:
                os.makedirs(folder, exist_ok=True)
            # Names of one file: a million inodes more would measure the machine's memory.
            os.link(first, os.path.join(folder, name + "-1"))
        show("start to SERVING, 1,000,000 blobs",
             min(seconds_to_serving(data_dir) for _ in range(3)), "s", "< 1")
        show("start to SERVING, 1,000,000 blobs, with --blob-limit",
             min(seconds_to_serving(data_dir, "--blob-limit", "1GiB") for _ in range(3)), "s", "< 1")


def main():
    os.environ["TMPDIR"] = "/dev/shm"
    tempfile.tempdir = None
    rows = {"upload": upload, "job": job, "start": start}
    for name in sys.argv[1:] or rows:
        rows[name]()


if __name__ == "__main__":
    main()
