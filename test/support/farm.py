"""A build farm's side of the API, and mixes of requests whose artifacts can be compared."""
import hashlib
import io
import random
import zipfile

import grpc

import lowerd_testing as t

load = t.protos()
bytestream = load("google.bytestream.bytestream_pb2")
bytestream_grpc = load("google.bytestream.bytestream_pb2_grpc")
reapi = load("build.bazel.remote.execution.v2.remote_execution_pb2")
reapi_grpc = load("build.bazel.remote.execution.v2.remote_execution_pb2_grpc")
operations = load("google.longrunning.operations_pb2")
operations_grpc = load("google.longrunning.operations_pb2_grpc")
lowering = load("lowerd.v1.lowering_pb2")
lowering_grpc = load("lowerd.v1.lowering_pb2_grpc")
manifest_pb = load("lowerd.v1.manifest_pb2")
type_names = load("lowerd.v1.type_names_pb2")
type_names_grpc = load("lowerd.v1.type_names_pb2_grpc")

FORMATS = (manifest_pb.TORCHSCRIPT, manifest_pb.LITE_BYTECODE, manifest_pb.FLATBUFFER)


def digest(data):
    return reapi.Digest(hash=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def variant(model, text):
    """The same model as another file: with one more extra file in the archive."""
    source = zipfile.ZipFile(io.BytesIO(model))
    root = source.namelist()[0].split("/")[0]
    out = io.BytesIO(model)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("%s/extra/note.txt" % root), text)
    return out.getvalue()


class Farm:
    """One connection to one server."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)])
        self.stream = bytestream_grpc.ByteStreamStub(self.channel)
        self.cas = reapi_grpc.ContentAddressableStorageStub(self.channel)
        self.operations = operations_grpc.OperationsStub(self.channel)
        self.lowering = lowering_grpc.LoweringServiceStub(self.channel)
        self.type_names = type_names_grpc.TypeNamesStub(self.channel)

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def upload(self, data):
        """Returns when the server has acknowledged the blob."""
        wanted = digest(data)
        if len(data) < 1 << 20:
            response = self.cas.BatchUpdateBlobs(reapi.BatchUpdateBlobsRequest(requests=[
                reapi.BatchUpdateBlobsRequest.Request(digest=wanted, data=data)]))
            if response.responses[0].status.code != 0:
                raise AssertionError(response)
            return wanted

        def chunks():
            name = "uploads/%032x/blobs/%s/%d" % (random.getrandbits(128), wanted.hash, len(data))
            for at in range(0, len(data), 256 << 10):
                piece = data[at:at + (256 << 10)]
                yield bytestream.WriteRequest(resource_name=name, write_offset=at, data=piece,
                                              finish_write=at + len(piece) == len(data))
        self.stream.Write(chunks())
        return wanted

    def read(self, wanted):
        name = "blobs/%s/%d" % (wanted.hash, wanted.size_bytes)
        return b"".join(part.data for part in self.stream.Read(
            bytestream.ReadRequest(resource_name=name)))

    def missing(self, digests):
        return list(self.cas.FindMissingBlobs(
            reapi.FindMissingBlobsRequest(blob_digests=digests)).missing_blob_digests)

    def wait(self, name, seconds=120):
        """The operation when it is done."""
        operation = self.lowering.WatchOperation(lowering.WatchOperationRequest(name=name),
                                                 timeout=seconds)
        last = None
        for last in operation:
            pass
        if last is None or not last.done:
            raise AssertionError("%s is not done: %s" % (name, last))
        return last

    def names(self):
        """Everything in the registry: {mangled name: identity of its owner}."""
        out, token = {}, ""
        while True:
            page = self.type_names.ListTypeNames(
                type_names.ListTypeNamesRequest(page_size=1000, page_token=token))
            for origin in page.origins:
                key = origin.lowered_type
                value = (origin.model.hash, origin.module_path, origin.backend,
                         origin.compile_spec_sha256)
                if out.setdefault(key, value) != value:
                    raise AssertionError("two owners of " + key)
            token = page.next_page_token
            if not token:
                return out


def result(operation):
    """What a done operation gave: {"manifest" or format: digest}. Raises what it failed with."""
    if operation.WhichOneof("result") != "response":
        raise AssertionError("%s failed: %s" % (operation.name, operation.error))
    response = lowering.LowerModelResponse()
    operation.response.Unpack(response)
    out = {
  "manifest" : (response.manifest_digest.hash, response.manifest_digest.size_bytes)}
    for artifact in response.manifest.artifacts:
        out[manifest_pb.Format.Name(artifact.format)] = (artifact.digest.hash,
                                                         artifact.digest.size_bytes)
    return out


class Mix:
    """`count` different requests on several models, the same for one seed."""

    def __init__(self, count, seed=20261201):
        rng = random.Random(seed)
        with open(t.MODEL, "rb") as file:
            mobilenet = file.read()
        with open(t.MODEL.replace("mobilenet_v2", "tiny"), "rb") as file:
            tiny = file.read()
        self.models = [mobilenet, tiny] + [variant(tiny, "variant %d" % i) for i in range(6)]
        self.requests = []
        for i in range(count):
            small = rng.random() < 0.7
            model = rng.choice(self.models[1:]) if small else mobilenet
            paths = ["a", "b"] if small else ["features.%d" % k for k in range(19)] + ["classifier"]
            chosen = rng.sample(paths, rng.randint(1, 2 if small else 4))
            targets = [lowering.Target(path=path, backend="reference", methods=[
                lowering.Method(name="forward", compile_spec=lowering.Value(string="spec %d" % i))])
                for path in sorted(chosen)]
            formats = rng.sample(FORMATS, rng.randint(1, 3))
            self.requests.append(lowering.LowerModelRequest(
                model=digest(model), targets=targets, formats=formats,
                artifact_stem="mix-%d" % i))

    def upload(self, farm):
        for model in self.models:
            farm.upload(model)
