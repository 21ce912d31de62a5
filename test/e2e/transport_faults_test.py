"""What clients with bad connections, slow clients and wrong clients get, and that others do not notice them."""
import hashlib
import os
import random
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import grpc

import farm
import lowerd_testing as t

KIB = 1 << 10
MIB = 1 << 20
# What a connection of a fault may cost the server beyond what it has when idle.
MEMORY_BOUND = 64 * MIB


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("timed out: " + what)
        time.sleep(0.01)


def resident(pid):
    """Bytes of the process that are its own: pages of mapped files are the kernel's to take back."""
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * KIB
    raise AssertionError("no RssAnon")


def sockets(pid):
    """How many sockets the process has open."""
    count = 0
    for name in os.listdir("/proc/%d/fd" % pid):
        try:
            count += os.readlink("/proc/%d/fd/%s" % (pid, name)).startswith("socket:")
        except OSError:
            pass
    return count


class CuttingProxy:
    """Forwards connections to a server and cuts each after `step` more bytes from the client."""

    def __init__(self, address, step):
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.step = step
        self.cuts = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client):
        server = socket.create_connection(self.target)
        left = self.step
        try:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(min(left, 64 * KIB) if source is client else 64 * KIB)
                    if not data:
                        return
                    (server if source is client else client).sendall(data)
                    if source is client:
                        left -= len(data)
                        if left == 0:
                            self.cuts += 1
                            # A reset, which drops what is under way too.
                            for end in (client, server):
                                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                               struct.pack("ii", 1, 0))
                            return
        except OSError:
            pass
        finally:
            client.close()
            server.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def channel_to(address, *options):
    return grpc.insecure_channel(address, options=[
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1), ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 100)] + list(options))


def write_name(data):
    return "uploads/%032x/blobs/%s/%d" % (random.getrandbits(128),
                                          hashlib.sha256(data).hexdigest(), len(data))


def read_name(data):
    return "blobs/%s/%d" % (hashlib.sha256(data).hexdigest(), len(data))


def requests(name, data, at, piece=16 * KIB):
    while True:
        part = data[at:at + piece]
        yield farm.bytestream.WriteRequest(resource_name=name, write_offset=at, data=part,
                                           finish_write=at + len(part) == len(data))
        at += len(part)
        if at == len(data):
            return


def cut_off(server):
    """How many reads the server has ended without their readers."""
    return len([line for line in server.log().splitlines()
                if "ByteStream/Read" in line and "CANCELLED" in line])


class TransportFaultsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lowerd-transport-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def assert_serves(self, server):
        """A client of good manners is served: it puts a blob and has it back."""
        data = os.urandom(200 * KIB)
        with farm.Farm(server.address) as good:
            good.upload(data)
            self.assertEqual(self.download(good, data), data)

    def download(self, client, data, **limits):
        request = farm.bytestream.ReadRequest(resource_name=read_name(data), **limits)
        return b"".join(r.data for r in client.stream.Read(request, timeout=60))

    def test_upload_goes_on_over_a_connection_that_is_cut_every_64_kib(self):
        data = os.urandom(2 * MIB + 1)
        with t.Server(workers=1) as server:
            with CuttingProxy(server.address, 64 * KIB) as proxy:
                stub_channel = channel_to(proxy.address)
                self.addCleanup(stub_channel.close)
                stub = farm.bytestream_grpc.ByteStreamStub(stub_channel)
                name = write_name(data)

                def query():
                    while True:
                        try:
                            return stub.QueryWriteStatus(farm.bytestream.QueryWriteStatusRequest(
                                resource_name=name), wait_for_ready=True, timeout=30)
                        except grpc.RpcError as error:
                            # The connection may just be breaking.
                            self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error)
                offsets = [0]
                while True:
                    try:
                        done = stub.Write(requests(name, data, offsets[-1]), timeout=30)
                        self.assertEqual(done.committed_size, len(data))
                        break
                    except grpc.RpcError as error:
                        self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error)
                    self.assertLess(len(offsets), 200, offsets)
                    status = query()
                    if status.complete:
                        break
                    self.assertGreaterEqual(status.committed_size, offsets[-1])
                    offsets.append(status.committed_size)
                self.assertGreaterEqual(proxy.cuts, len(data) // (64 * KIB) - 1)
                self.assertEqual(offsets, sorted(offsets))
            with farm.Farm(server.address) as good:
                self.assertEqual(self.download(good, data), data)

    def test_lowerctl_put_goes_on_over_a_connection_that_is_cut(self):
        # What lowerctl's messages of 1 MiB need to get on: less would be cut for ever.
        data = os.urandom(6 * MIB)
        path = os.path.join(self.folder, "blob")
        with open(path, "wb") as file:
            file.write(data)
        with t.Server(workers=1) as server:
            with CuttingProxy(server.address, 64 * KIB) as proxy:
                put = t.lowerctl("--server", proxy.address, "--retries", "1000", "put", path,
                                 timeout=300)
                self.assertEqual(put.code, 0, put.err)
                self.assertGreaterEqual(proxy.cuts, 16)
            with farm.Farm(server.address) as good:
                self.assertEqual(self.download(good, data), data)

    def test_reader_that_takes_nothing_costs_one_chunk_until_it_is_cut_off(self):
        data = os.urandom(MIB) * 200
        with t.Server("--stall-timeout", "3s", workers=1) as server:
            with farm.Farm(server.address) as good:
                good.upload(data)
            before = resident(server.process.pid)
            channels = [channel_to(server.address) for _ in range(20)]
            calls = [farm.bytestream_grpc.ByteStreamStub(c).Read(
                farm.bytestream.ReadRequest(resource_name=read_name(data))) for c in channels]
            for call in calls:
                next(call)
            self.assert_serves(server)
            self.assertLess(resident(server.process.pid) - before, MEMORY_BOUND)
            until(lambda: cut_off(server) >= len(calls), "all are cut off")
            for call in calls:
                with self.assertRaises(grpc.RpcError):
                    for _ in call:
                        pass
            for channel in channels:
                channel.close()
            self.assert_serves(server)

    def test_writer_that_sends_nothing_more_is_cut_off_and_can_go_on(self):
        data = os.urandom(MIB)
        name = write_name(data)
        with t.Server("--stall-timeout", "2s", workers=1) as server, \
                channel_to(server.address) as channel:
            stub = farm.bytestream_grpc.ByteStreamStub(channel)
            ended = threading.Event()
            self.addCleanup(ended.set)

            def some():
                for request in requests(name, data, 0):
                    if request.write_offset == MIB // 2:
                        ended.wait(60)
                        return
                    yield request
            with self.assertRaises(grpc.RpcError) as caught:
                stub.Write(some(), timeout=60)
            self.assertNotEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
            status = stub.QueryWriteStatus(
                farm.bytestream.QueryWriteStatusRequest(resource_name=name))
            self.assertEqual((status.committed_size, status.complete), (MIB // 2, False))
            self.assertEqual(stub.Write(requests(name, data, MIB // 2)).committed_size, MIB)

    def test_500_idle_connections_cost_little_and_are_forgotten(self):
        preface = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        with t.Server(workers=1) as server:
            self.assert_serves(server)
            pid = server.process.pid
            before, open_before = resident(pid), sockets(pid)
            host, port = server.address.rsplit(":", 1)
            idle = []
            for i in range(500):
                connection = socket.create_connection((host, int(port)))
                # Every second one does not even say that it speaks HTTP/2.
                if i % 2 == 0:
                    connection.sendall(preface)
                    connection.recv(1)
                idle.append(connection)
            until(lambda: sockets(pid) >= open_before + 500, "all are accepted")
            self.assert_serves(server)
            self.assertLess(resident(pid) - before, MEMORY_BOUND)
            for connection in idle:
                connection.close()
            until(lambda: sockets(pid) <= open_before + 8, "all are gone")
            self.assert_serves(server)

    def test_client_with_too_many_streams_is_told_when_to_come_back(self):
        data = os.urandom(MIB) * 50
        with t.Server("--max-streams-per-client", "3", workers=1) as server, \
                channel_to(server.address) as channel:
            with farm.Farm(server.address) as good:
                good.upload(data)
            stub = farm.bytestream_grpc.ByteStreamStub(channel)
            request = farm.bytestream.ReadRequest(resource_name=read_name(data))
            calls = [stub.Read(request) for _ in range(3)]
            for call in calls:
                next(call)
            with self.assertRaises(grpc.RpcError) as caught:
                stub.Write(requests(write_name(b"x"), b"x", 0))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            details = dict(caught.exception.trailing_metadata())["grpc-status-details-bin"]
            self.assertIn(b"QUEUE_FULL", details)
            self.assertIn(b"RetryInfo", details)
            # lowerctl comes back by itself.
            path = os.path.join(self.folder, "blob")
            with open(path, "wb") as file:
                file.write(os.urandom(5 * MIB))
            put = subprocess.Popen([t.program("lowerctl"), "--server", server.address, "--retries",
                                    "30", "put", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            until(lambda: server.log().count("QUEUE_FULL") >= 2, "lowerctl is refused")
            for call in calls:
                call.cancel()
            _, err = put.communicate(timeout=60)
            self.assertEqual(put.returncode, 0, err)
            self.assert_serves(server)

    def test_what_is_beyond_a_limit_is_refused_and_the_server_lives(self):
        with t.Server(workers=1) as server, channel_to(server.address) as channel:
            stream = farm.bytestream_grpc.ByteStreamStub(channel)
            cas = farm.reapi_grpc.ContentAddressableStorageStub(channel)
            lowering = farm.lowering_grpc.LoweringServiceStub(channel)
            big = os.urandom(9 * MIB)
            small = b"x"

            def batch(count, size):
                request = farm.reapi.BatchUpdateBlobsRequest()
                for _ in range(count):
                    data = os.urandom(size)
                    request.requests.add(digest=farm.digest(data), data=data)
                return request
            cases = (
                ("a message above 8 MiB", "RESOURCE_EXHAUSTED",
                 lambda: stream.Write(iter([farm.bytestream.WriteRequest(
                     resource_name=write_name(big), data=big, finish_write=True)]))),
                ("a unary message above 8 MiB", "RESOURCE_EXHAUSTED",
                 lambda: cas.BatchUpdateBlobs(batch(9, MIB))),
                ("a batch above its limit", "INVALID_ARGUMENT",
                 lambda: cas.BatchUpdateBlobs(batch(5, MIB))),
                ("metadata", "RESOURCE_EXHAUSTED",
                 lambda: lowering.ListBackends(farm.lowering.ListBackendsRequest(),
                                               metadata=[("long", "x" * 100 * KIB)])),
                ("a resource name to write", "INVALID_ARGUMENT",
                 lambda: stream.Write(iter([farm.bytestream.WriteRequest(
                     resource_name="x/" * 500 * KIB + write_name(small), data=small,
                     finish_write=True)]))),
                ("an upload id", "INVALID_ARGUMENT",
                 lambda: stream.Write(iter([farm.bytestream.WriteRequest(
                     resource_name=write_name(small).replace("uploads/", "uploads/" + "x" * MIB),
                     data=small, finish_write=True)]))),
                ("a resource name to read", "INVALID_ARGUMENT",
                 lambda: list(stream.Read(farm.bytestream.ReadRequest(
                     resource_name="x" * MIB + read_name(small))))),
                ("a resource name to query", "INVALID_ARGUMENT",
                 lambda: stream.QueryWriteStatus(farm.bytestream.QueryWriteStatusRequest(
                     resource_name="x" * MIB))),
                ("a batch to read above its limit", "INVALID_ARGUMENT",
                 lambda: cas.BatchReadBlobs(farm.reapi.BatchReadBlobsRequest(
                     digests=[farm.digest(big)] * 10))),
                ("bytes beyond the announced size", "INVALID_ARGUMENT RESOURCE_EXHAUSTED",
                 lambda: stream.Write(iter([farm.bytestream.WriteRequest(
                     resource_name=write_name(b"ab"), data=b"abc", finish_write=True)]))),
            )
            for name, codes, call in cases:
                with self.subTest(name):
                    with self.assertRaises(grpc.RpcError) as caught:
                        call()
                    self.assertIn(caught.exception.code().name, codes.split())
                    self.assertLess(len(caught.exception.details()), 2000)
                    self.assert_serves(server)
            self.assertIsNone(server.process.poll())


if __name__ == "__main__":
    unittest.main()
