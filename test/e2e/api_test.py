"""The API as a client of another make sees it: Python's gRPC with stubs from our public protos."""
import threading
import unittest
import uuid

import grpc

import lowerd_testing as t
from farm import (bytestream, bytestream_grpc, digest, load, lowering, lowering_grpc, manifest_pb,
                  operations, operations_grpc, reapi, reapi_grpc)

details = load("google.rpc.error_details_pb2")
rpc_status = load("google.rpc.status_pb2")

with open(t.MODEL, "rb") as model_file:
    MODEL = model_file.read()


def reason(status):
    """The one ErrorInfo of a google.rpc.Status."""
    infos = []
    for detail in status.details:
        info = details.ErrorInfo()
        if detail.Unpack(info):
            infos.append(info)
    if len(infos) != 1 or infos[0].domain != "lowerd":
        raise AssertionError("not one ErrorInfo of lowerd: %s" % status)
    return infos[0].reason


class ApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = t.Server().start()
        cls.addClassCleanup(cls.server.__exit__)
        cls.channel = grpc.insecure_channel(cls.server.address)
        cls.addClassCleanup(cls.channel.close)
        cls.stream = bytestream_grpc.ByteStreamStub(cls.channel)
        cls.cas = reapi_grpc.ContentAddressableStorageStub(cls.channel)
        cls.capabilities = reapi_grpc.CapabilitiesStub(cls.channel)
        cls.operations = operations_grpc.OperationsStub(cls.channel)
        cls.lowering = lowering_grpc.LoweringServiceStub(cls.channel)

    def write_requests(self, name, data, offset=0, chunk=300000):
        while True:
            piece = data[offset:offset + chunk]
            end = offset + len(piece) == len(data)
            yield bytestream.WriteRequest(resource_name=name, write_offset=offset, data=piece,
                                          finish_write=end)
            offset += len(piece)
            if end:
                return

    def upload(self, data):
        d = digest(data)
        name = "uploads/%s/blobs/%s/%d" % (uuid.uuid4(), d.hash, d.size_bytes)
        response = self.stream.Write(self.write_requests(name, data))
        self.assertEqual(response.committed_size, len(data))
        return d

    def download(self, d):
        name = "blobs/%s/%d" % (d.hash, d.size_bytes)
        return b"".join(r.data for r in self.stream.Read(bytestream.ReadRequest(resource_name=name)))

    def request(self, *paths, **fields):
        self.upload(MODEL)
        return lowering.LowerModelRequest(model=digest(MODEL),
                                          targets=[lowering.Target(path=p) for p in paths], **fields)

    def rpc_error(self, call, *args):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args)
        error = caught.exception
        status = rpc_status.Status()
        for key, value in error.trailing_metadata():
            if key == "grpc-status-details-bin":
                status.ParseFromString(value)
        self.assertEqual(status.code, error.code().value[0])
        return error.code(), status

    def wait(self, name):
        operation = self.operations.WaitOperation(operations.WaitOperationRequest(name=name))
        self.assertTrue(operation.done)
        return operation

    def test_upload_lower_watch_and_download(self):
        operation = self.lowering.LowerModel(self.request(
            "features.1", "features.3",
            formats=[manifest_pb.TORCHSCRIPT, manifest_pb.LITE_BYTECODE]))
        states = list(self.lowering.WatchOperation(
            lowering.WatchOperationRequest(name=operation.name)))
        self.assertTrue(states[-1].done)
        metadata = lowering.LowerModelMetadata()
        self.assertTrue(states[-1].metadata.Unpack(metadata))
        self.assertEqual(metadata.state, lowering.LowerModelMetadata.DONE)
        response = lowering.LowerModelResponse()
        self.assertTrue(states[-1].response.Unpack(response), states[-1])
        self.assertEqual(len(response.manifest.lowered_modules), 2)
        for artifact in response.manifest.artifacts:
            data = self.download(artifact.digest)
            self.assertEqual(digest(data), artifact.digest)

    def test_second_identical_request_is_answered_done(self):
        request = self.request("features.7")
        self.wait(self.lowering.LowerModel(request).name)
        again = self.lowering.LowerModel(request)
        self.assertTrue(again.done)
        # Its name can be read later like any other.
        got = self.operations.GetOperation(operations.GetOperationRequest(name=again.name))
        self.assertEqual(got.response, again.response)

    def test_request_id_makes_a_retry_the_same_operation(self):
        request = self.request("features.8", request_id=str(uuid.uuid4()))
        names = {self.lowering.LowerModel(request).name for _ in range(3)}
        self.assertEqual(len(names), 1)

    def test_missing_blob_is_a_precondition_failure_that_names_it(self):
        absent = digest(b"absent")
        code, status = self.rpc_error(self.lowering.LowerModel,
                                      lowering.LowerModelRequest(model=absent))
        self.assertEqual(code, grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(reason(status), "BLOB_MISSING")
        failure = details.PreconditionFailure()
        self.assertTrue([d for d in status.details if d.Unpack(failure)])
        self.assertEqual(failure.violations[0].type, "MISSING")
        self.assertEqual(failure.violations[0].subject, "blobs/%s/6" % absent.hash)

    def test_run_errors_stand_in_the_operation(self):
        operation = self.wait(self.lowering.LowerModel(self.request("nosuch")).name)
        self.assertEqual(operation.WhichOneof("result"), "error")
        self.assertEqual(reason(operation.error), "MODULE_NOT_FOUND")
        self.assertEqual(operation.error.code, grpc.StatusCode.NOT_FOUND.value[0])

    def test_start_errors_are_rpc_errors(self):
        request = self.request("features.1")
        request.targets[0].backend = "nosuch"
        code, status = self.rpc_error(self.lowering.LowerModel, request)
        self.assertEqual((code, reason(status)), (grpc.StatusCode.NOT_FOUND, "BACKEND_NOT_FOUND"))
        code, status = self.rpc_error(self.lowering.LowerModel, lowering.LowerModelRequest())
        self.assertEqual((code, reason(status)),
                         (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"))

    def test_unknown_operations_are_not_found_everywhere(self):
        name = "operations/nosuch"
        for call, request in (
                (self.operations.GetOperation, operations.GetOperationRequest(name=name)),
                (self.operations.WaitOperation, operations.WaitOperationRequest(name=name)),
                (self.operations.CancelOperation, operations.CancelOperationRequest(name=name)),
                (self.operations.DeleteOperation, operations.DeleteOperationRequest(name=name))):
            code, status = self.rpc_error(call, request)
            self.assertEqual((code, reason(status)),
                             (grpc.StatusCode.NOT_FOUND, "RESOURCE_NOT_FOUND"))
        code, status = self.rpc_error(
            list, self.lowering.WatchOperation(lowering.WatchOperationRequest(name=name)))
        self.assertEqual(reason(status), "RESOURCE_NOT_FOUND")

    def test_operations_list_filters_and_delete(self):
        good = self.lowering.LowerModel(self.request("features.9", cache_policy=lowering.BYPASS)).name
        bad = self.lowering.LowerModel(self.request("nosuch.9")).name
        self.wait(good)
        self.wait(bad)

        def listed(text):
            out, token = [], ""
            while True:
                page = self.operations.ListOperations(operations.ListOperationsRequest(
                    name="operations", filter=text, page_size=3, page_token=token))
                self.assertLessEqual(len(page.operations), 3)
                out += [o.name for o in page.operations]
                token = page.next_page_token
                if not token:
                    return out
        self.assertIn(good, listed(""))
        self.assertIn(good, listed("done = true AND error = false"))
        self.assertNotIn(bad, listed("error = false"))
        self.assertIn(bad, listed("error = true"))
        self.operations.DeleteOperation(operations.DeleteOperationRequest(name=good))
        self.assertNotIn(good, listed(""))
        code, _ = self.rpc_error(self.operations.ListOperations,
                                 operations.ListOperationsRequest(name="operations", filter="x"))
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)

    def test_capabilities_are_true(self):
        answer = self.capabilities.GetCapabilities(reapi.GetCapabilitiesRequest())
        cache = answer.cache_capabilities
        self.assertEqual(list(cache.digest_functions), [reapi.DigestFunction.SHA256])
        self.assertFalse(cache.action_cache_update_capabilities.update_enabled)
        size = cache.max_batch_total_size_bytes
        self.assertGreater(size, 0)
        blob = bytes(size - 200)
        answer = self.cas.BatchUpdateBlobs(reapi.BatchUpdateBlobsRequest(
            requests=[reapi.BatchUpdateBlobsRequest.Request(digest=digest(blob), data=blob)]))
        self.assertEqual(answer.responses[0].status.code, 0)

    def test_cas_finds_updates_and_reads(self):
        blobs = [b"one", b"two", b""]
        digests = [digest(b) for b in blobs]
        missing = self.cas.FindMissingBlobs(reapi.FindMissingBlobsRequest(blob_digests=digests))
        self.assertNotIn(digests[2], missing.missing_blob_digests)
        requests = [reapi.BatchUpdateBlobsRequest.Request(digest=d, data=b)
                    for d, b in zip(digests, blobs)]
        requests.append(reapi.BatchUpdateBlobsRequest.Request(digest=digest(b"x"), data=b"y"))
        answer = self.cas.BatchUpdateBlobs(reapi.BatchUpdateBlobsRequest(requests=requests))
        codes = [r.status.code for r in answer.responses]
        self.assertEqual(codes, [0, 0, 0, grpc.StatusCode.INVALID_ARGUMENT.value[0]])
        read = self.cas.BatchReadBlobs(reapi.BatchReadBlobsRequest(digests=digests + [digest(b"no")]))
        self.assertEqual([r.data for r in read.responses[:3]], blobs)
        self.assertEqual(read.responses[3].status.code, grpc.StatusCode.NOT_FOUND.value[0])

    def test_cut_upload_goes_on_where_it_stood(self):
        data = uuid.uuid4().bytes * 50000
        d = digest(data)
        name = "uploads/%s/blobs/%s/%d" % (uuid.uuid4(), d.hash, d.size_bytes)
        sent = threading.Event()
        release = threading.Event()

        def half():
            yield bytestream.WriteRequest(resource_name=name, data=data[:400000])
            sent.set()
            release.wait(30)
        call = self.stream.Write.future(half())
        self.assertTrue(sent.wait(30))
        query = bytestream.QueryWriteStatusRequest(resource_name=name)

        def committed():
            try:
                return self.stream.QueryWriteStatus(query).committed_size
            except grpc.RpcError as error:
                # Asked before the first message has been taken.
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
                return 0

        while committed() < 400000:
            pass
        call.cancel()
        release.set()
        status = self.stream.QueryWriteStatus(query)
        self.assertEqual((status.committed_size, status.complete), (400000, False))
        response = self.stream.Write(self.write_requests(name, data, status.committed_size))
        self.assertEqual(response.committed_size, len(data))
        self.assertEqual(self.download(d), data)

    def test_wrong_digest_is_refused_and_nothing_becomes_visible(self):
        data = b"these are not the bytes"
        wrong = digest(b"that were announced ...")
        name = "uploads/%s/blobs/%s/%d" % (uuid.uuid4(), wrong.hash, wrong.size_bytes)
        code, status = self.rpc_error(self.stream.Write, self.write_requests(name, data))
        self.assertEqual((code, reason(status)),
                         (grpc.StatusCode.INVALID_ARGUMENT, "DIGEST_MISMATCH"))
        missing = self.cas.FindMissingBlobs(reapi.FindMissingBlobsRequest(blob_digests=[wrong]))
        self.assertEqual(list(missing.missing_blob_digests), [wrong])

    def test_many_clients_at_once(self):
        expected = [self.request("features.%d" % (i % 6)) for i in range(50)]
        results = [None] * len(expected)

        def client(i):
            with grpc.insecure_channel(self.server.address,
                                       options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                stub = lowering_grpc.LoweringServiceStub(channel)
                operation = stub.LowerModel(expected[i])
                last = list(stub.WatchOperation(
                    lowering.WatchOperationRequest(name=operation.name)))[-1]
                results[i] = last.response.value
        threads = [threading.Thread(target=client, args=(i,)) for i in range(len(expected))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, result in enumerate(results):
            self.assertTrue(result, "client %d got no response" % i)
            self.assertEqual(result, results[i % 6])

    def test_health_and_reflection_are_served(self):
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check",
                                         request_serializer=lambda b: b,
                                         response_deserializer=lambda b: b)
        for service in ("", "lowerd.v1.LoweringService", "google.bytestream.ByteStream",
                        "google.longrunning.Operations", "lowerd.v1.TypeNames",
                        "build.bazel.remote.execution.v2.ContentAddressableStorage"):
            name = service.encode()
            request = b"\n" + bytes([len(name)]) + name if name else b""
            self.assertEqual(check(request), b"\x08\x01", service)
        reflect = self.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=lambda b: b, response_deserializer=lambda b: b)
        answer = b"".join(reflect(iter([b":\x00"])))
        self.assertIn(b"lowerd.v1.LoweringService", answer)


if __name__ == "__main__":
    unittest.main()
