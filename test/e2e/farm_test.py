"""What a farm relies on: same bytes from anywhere, nothing acknowledged is lost, many clients at once.

LOWERD_CRASH_ROUNDS sets how many kills each engine gets (20), LOWERD_SEED which (random; it is printed).
"""
import contextlib
import os
import random
import signal
import threading
import time
import unittest

import grpc

import farm as f
import lowerd_testing as t
from postgres import Postgres

CRASH_ROUNDS = int(os.environ.get("LOWERD_CRASH_ROUNDS", "20"))
SEED = int(os.environ.get("LOWERD_SEED", str(random.randrange(1 << 30))))


@contextlib.contextmanager
def replicas(count, *flags):
    """`count` servers on one PostgreSQL and one blob store, which is another lowerd."""
    with Postgres() as postgres, t.Server(workers=1) as store, contextlib.ExitStack() as stack:
        state = postgres.new_database()
        yield [stack.enter_context(t.Server("--state", state, "--blobs", "grpc://" + store.address,
                                            *flags, workers=1)) for _ in range(count)]


def lower_all(requests, farms, threads, bypass=False):
    """Results of all requests, spread over farms and threads; the order is the requests'."""
    out = [None] * len(requests)
    todo = list(range(len(requests)))
    lock = threading.Lock()
    failures = []

    def work(farm):
        while True:
            with lock:
                if not todo or failures:
                    return
                i = todo.pop()
            try:
                request = f.lowering.LowerModelRequest()
                request.CopyFrom(requests[i])
                if bypass:
                    request.cache_policy = f.lowering.BYPASS
                out[i] = f.result(farm.wait(farm.lowering.LowerModel(request).name))
            except Exception as error:
                failures.append(error)
    workers = [threading.Thread(target=work, args=(farms[i % len(farms)],)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return out


class SameBytesTest(unittest.TestCase):
    def test_mix_is_identical_from_one_server_from_two_replicas_and_after_a_restart(self):
        mix = f.Mix(50)
        with t.Server(workers=2) as server:
            with f.Farm(server.address) as farm:
                mix.upload(farm)
                first = lower_all(mix.requests, [farm], 4)
                names = farm.names()
            self.assertEqual(server.stop(), 0)
            server.start()
            with f.Farm(server.address) as farm:
                again = lower_all(list(reversed(mix.requests)), [farm], 2, bypass=True)
                self.assertEqual(list(reversed(again)), first)
                self.assertEqual(farm.names(), names)
        with replicas(2) as servers, contextlib.ExitStack() as stack:
            farms = [stack.enter_context(f.Farm(server.address)) for server in servers]
            mix.upload(farms[0])
            self.assertEqual(lower_all(mix.requests, farms, 4), first)
            self.assertEqual(farms[1].names(), names)
            # What one replica lowered, the other answers and serves.
            for request, expected in zip(mix.requests, first):
                operation = farms[1].lowering.LowerModel(request)
                self.assertTrue(operation.done)
                self.assertEqual(f.result(operation), expected)
            blob = f.reapi.Digest(hash=first[0]["manifest"][0], size_bytes=first[0]["manifest"][1])
            self.assertEqual(f.digest(farms[1].read(blob)), blob)


class ManyClientsTest(unittest.TestCase):
    def test_64_clients_with_equal_and_different_requests(self):
        mix = f.Mix(24)
        with t.Server(workers=2) as server:
            with f.Farm(server.address) as farm:
                mix.upload(farm)
            failures, seen, lock = [], {}, threading.Lock()

            def client(number):
                rng = random.Random(number)
                try:
                    with f.Farm(server.address) as farm:
                        for _ in range(6):
                            i = rng.randrange(len(mix.requests))
                            operation = farm.lowering.LowerModel(mix.requests[i])
                            if rng.random() < 0.1:
                                farm.operations.CancelOperation(
                                    f.operations.CancelOperationRequest(name=operation.name))
                                done = farm.wait(operation.name)
                                if done.WhichOneof("result") == "error":
                                    continue
                            result = f.result(farm.wait(operation.name))
                            with lock:
                                if seen.setdefault(i, result) != result:
                                    raise AssertionError("different bytes for request %d" % i)
                except Exception as error:
                    failures.append(error)
            clients = [threading.Thread(target=client, args=(n,)) for n in range(64)]
            for thread in clients:
                thread.start()
            for thread in clients:
                thread.join()
            self.assertEqual(failures, [])
            self.assertGreater(len(seen), 20)


class Load:
    """Uploads and lowerings against some servers until it is stopped; remembers what was acknowledged."""

    def __init__(self, mix, addresses, seed):
        self.mix = mix
        self.uploaded = []
        # (operation name, index of the request)
        self.accepted = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(address, random.Random(seed + i)))
                        for i, address in enumerate(addresses * 3)]
        for thread in self.threads:
            thread.start()

    def work(self, address, rng):
        with f.Farm(address) as farm:
            while not self.stopping.is_set():
                try:
                    if rng.random() < 0.5:
                        data = rng.randbytes(rng.choice((100, 10_000, 2_000_000)))
                        self.uploaded.append(farm.upload(data))
                        continue
                    i = rng.randrange(len(self.mix.requests))
                    request = f.lowering.LowerModelRequest()
                    request.CopyFrom(self.mix.requests[i])
                    if rng.random() < 0.7:
                        request.cache_policy = f.lowering.BYPASS
                    self.accepted.append((farm.lowering.LowerModel(request).name, i))
                    self.stopping.wait(0.02)
                except grpc.RpcError as error:
                    if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED,
                                            grpc.StatusCode.RESOURCE_EXHAUSTED):
                        raise
                    # The server was killed.
                    self.stopping.wait(0.05)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


class KillTest(unittest.TestCase):
    """kill -9 at random moments."""

    def rounds(self, servers):
        print("seed %d, %d rounds" % (SEED, CRASH_ROUNDS))
        rng = random.Random(SEED)
        mix = f.Mix(12)
        with f.Farm(servers[0].address) as farm:
            mix.upload(farm)
            expected = lower_all(mix.requests, [farm], 2)
            names = farm.names()
        uploaded, operations = [], 0
        for number in range(CRASH_ROUNDS):
            load = Load(mix, [server.address for server in servers], rng.getrandbits(32))
            time.sleep(rng.uniform(0.02, 0.8))
            for server in rng.sample(servers, rng.randint(1, len(servers))):
                server.kill()
            load.stop()
            for server in servers:
                if server.process is None:
                    server.start()
            with f.Farm(rng.choice(servers).address) as farm:
                for name, i in load.accepted:
                    done = farm.wait(name)
                    self.assertEqual(f.result(done), expected[i], "round %d, %s" % (number, name))
                found = farm.names()
                self.assertEqual({key: found.get(key) for key in names}, names)
                uploaded += load.uploaded
                self.assertEqual(farm.missing(uploaded), [], "round %d" % number)
                for blob in rng.sample(load.uploaded, min(3, len(load.uploaded))):
                    self.assertEqual(f.digest(farm.read(blob)), blob)
                for results in expected:
                    for hash_, size in results.values():
                        blob = f.reapi.Digest(hash=hash_, size_bytes=size)
                        if number % 10 == 0:
                            self.assertEqual(f.digest(farm.read(blob)), blob)
            operations += len(load.accepted)
        print("%d operations and %d uploads were acknowledged" % (operations, len(uploaded)))
        self.assertGreater(operations, CRASH_ROUNDS)
        self.assertGreater(len(uploaded), CRASH_ROUNDS)

    def test_sqlite(self):
        with t.Server(workers=2) as server:
            self.rounds([server])

    def test_two_replicas_on_postgresql_and_a_remote_blob_store(self):
        with replicas(2, "--lease", "2s") as servers:
            self.rounds(servers)


if __name__ == "__main__":
    unittest.main()
