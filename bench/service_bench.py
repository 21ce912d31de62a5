"""End-to-end benchmarks of the service, side by side in one run with what they are judged against.

    LOWERD_BIN_DIR=build/release/bin LOWERD_LIB_DIR=build/release/lib LOWERD_SOURCE_DIR=$PWD \
    PYTHONPATH=test/support /usr/bin/python3 bench/service_bench.py

Prints one line for each measurement. The peers are PyTorch's own Python calls with the same backend library
(cold: a fresh process for each model; warm: repeated in one process) and a bare unary gRPC call.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import grpc

import lowerd_testing as t

warnings.filterwarnings("ignore")
load = t.protos()
operations = load("google.longrunning.operations_pb2")
operations_grpc = load("google.longrunning.operations_pb2_grpc")
lowering = load("lowerd.v1.lowering_pb2")
lowering_grpc = load("lowerd.v1.lowering_pb2_grpc")
manifest_pb = load("lowerd.v1.manifest_pb2")
reapi = load("build.bazel.remote.execution.v2.remote_execution_pb2")

PEER = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import torch
torch.set_num_threads(1)
torch.ops.load_library(sys.argv[1])
model, targets, out, rounds = sys.argv[2], sys.argv[3].split(","), sys.argv[4], int(sys.argv[5])
for _ in range(rounds):
    start = time.monotonic()
    m = torch.jit.load(model)
    m.eval()
    low = torch._C._jit_to_backend_selective(
        m, lambda s: torch._C._jit_to_backend("reference", s, {"forward": ""}), targets)
    low.save(out + ".pt")
    low._save_for_lite_interpreter(out + ".ptl")
    print(time.monotonic() - start)
"""


def peer(model, targets, rounds):
    """(seconds of the whole process, seconds of each round inside)"""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", PEER, t.BACKEND_LIBRARY, model,
                               ",".join(targets), os.path.join(folder, "x"), str(rounds)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return None, None
        return time.monotonic() - start, [float(x) for x in done.stdout.split()]


def digest_of(server, path):
    text = server.lowerctl("put", path).out.split()[0]
    hash_, size = text.split("/")
    return reapi.Digest(hash=hash_, size_bytes=int(size))


def lower(channel, digest, targets, count, threads, bypass=True):
    """Seconds for `count` lowerings, `threads` at a time."""
    stub = lowering_grpc.LoweringServiceStub(channel)
    request = lowering.LowerModelRequest(
        model=digest, targets=[lowering.Target(path=p) for p in targets],
        formats=[manifest_pb.TORCHSCRIPT, manifest_pb.LITE_BYTECODE],
        cache_policy=lowering.BYPASS if bypass else lowering.CACHE_POLICY_UNSPECIFIED)

    def work(share):
        for _ in range(share):
            operation = stub.LowerModel(request)
            if not operation.done:
                for operation in stub.WatchOperation(
                        lowering.WatchOperationRequest(name=operation.name)):
                    pass
            assert operation.WhichOneof("result") == "response", operation
    start = time.monotonic()
    workers = [threading.Thread(target=work, args=(count // threads,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.monotonic() - start


def show(name, value, unit, note=""):
    print("%-58s %9.2f %-8s %s" % (name, value, unit, note))
    sys.stdout.flush()


def main():
    import torch
    import torchvision
    with tempfile.TemporaryDirectory() as folder:
        resnet = os.path.join(folder, "resnet18.pt")
        torch.manual_seed(1)
        torch.jit.script(torchvision.models.resnet18(weights=None).eval()).save(resnet)
        tiny = os.path.join(t.SOURCE, "test", "models", "tiny.pt")
        layers = ["layer1", "layer2", "layer3", "layer4"]

        start = time.monotonic()
        server = t.Server(workers=1).start()
        show("start of lowerd to serving", time.monotonic() - start, "s")
        with grpc.insecure_channel(server.address) as channel:
            digest = digest_of(server, resnet)
            lower(channel, digest, layers, 2, 1)
            ours = [lower(channel, digest, layers, 1, 1) for _ in range(7)]
            whole, rounds = peer(resnet, layers, 6)
            if rounds:
                show("ResNet-18, four layers: lowerd", statistics.median(ours), "s",
                     "%.2fx of PyTorch warm" % (statistics.median(ours) / statistics.median(rounds[1:])))
                show("ResNet-18, four layers: PyTorch warm in one process",
                     statistics.median(rounds[1:]), "s")
                cold, _ = peer(resnet, layers, 1)
                show("ResNet-18, four layers: PyTorch in a fresh process", cold, "s",
                     "lowerd is %.1fx faster" % (cold / statistics.median(ours)))

            small = digest_of(server, tiny)
            lower(channel, small, ["a"], 5, 1)
            one = 100 / lower(channel, small, ["a"], 100, 2)
            show("tiny model, uncached, one worker", one, "jobs/s")
            cold, _ = peer(tiny, ["a"], 1)
            if cold:
                show("tiny model: PyTorch in a fresh process", 1 / cold, "jobs/s",
                     "lowerd is %.1fx faster" % (cold * one))
            lower(channel, small, ["a"], 1, 1, bypass=False)
            hits = 2000 / lower(channel, small, ["a"], 2000, 1, bypass=False)
            unary = channel.unary_unary("/grpc.health.v1.Health/Check",
                                        request_serializer=lambda b: b,
                                        response_deserializer=lambda b: b)
            start = time.monotonic()
            for _ in range(2000):
                unary(b"")
            bare = 2000 / (time.monotonic() - start)
            show("cache hits, one Python client", hits, "calls/s",
                 "%.2fx of a bare unary call (%.0f/s)" % (hits / bare, bare))
        server.__exit__()
        with t.Server(workers=2) as server, grpc.insecure_channel(server.address) as channel:
            small = digest_of(server, tiny)
            lower(channel, small, ["a"], 6, 2)
            two = 100 / lower(channel, small, ["a"], 100, 4)
            show("tiny model, uncached, two workers", two, "jobs/s", "%.2fx of one" % (two / one))


if __name__ == "__main__":
    main()
