// LowerModel calls that the cache answers, beside bare unary calls to the same server.
//
//   cache_bench

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include "bench/lowerd_process.h"
#include "build/bazel/remote/execution/v2/remote_execution.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "lowerd/v1/lowering.grpc.pb.h"
#include "src/base/digest.h"
#include "src/base/fd.h"

namespace lowerd::bench {
namespace {

namespace reapi = build::bazel::remote::execution::v2;

constexpr int64_t kModelLimit = 64 << 20;

void Check(const grpc::Status& status) {
  if (status.ok()) return;
  std::cerr << status.error_code() << ": " << status.error_message() << "\n";
  std::exit(1);
}

// A server that has lowered the request already.
struct WarmServer {
  WarmServer() {
    const std::string model =
        ReadFileToString(std::string(LOWERD_TEST_MODELS) + "/tiny.pt", kModelLimit).value();
    const Digest digest = Digest::Of(model);
    reapi::BatchUpdateBlobsRequest upload;
    reapi::BatchUpdateBlobsRequest::Request& blob = *upload.add_requests();
    blob.mutable_digest()->set_hash(digest.hex());
    blob.mutable_digest()->set_size_bytes(digest.size_bytes());
    blob.set_data(model);
    reapi::BatchUpdateBlobsResponse uploaded;
    grpc::ClientContext context;
    Check(reapi::ContentAddressableStorage::NewStub(Channel())->BatchUpdateBlobs(&context, upload,
                                                                                 &uploaded));
    *request.mutable_model() = blob.digest();
    request.add_targets()->set_path("a");
    request.add_formats(v1::TORCHSCRIPT);
    request.add_formats(v1::LITE_BYTECODE);
    const auto stub = v1::LoweringService::NewStub(Channel());
    google::longrunning::Operation operation;
    grpc::ClientContext start;
    Check(stub->LowerModel(&start, request, &operation));
    v1::WatchOperationRequest watch;
    watch.set_name(operation.name());
    grpc::ClientContext watching;
    const auto reader = stub->WatchOperation(&watching, watch);
    while (reader->Read(&operation)) {
    }
    Check(reader->Finish());
    if (!operation.has_response()) {
      std::cerr << operation.ShortDebugString() << "\n";
      std::exit(1);
    }
  }

  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(process.address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  LowerdProcess process;
  v1::LowerModelRequest request;
};

const WarmServer& Server() {
  static const WarmServer server;
  return server;
}

void BM_BareUnaryCall(benchmark::State& state) {
  const auto stub = grpc::health::v1::Health::NewStub(Server().Channel());
  for (auto _ : state) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    Check(stub->Check(&context, {}, &response));
  }
  state.SetItemsProcessed(state.iterations());
}

void BM_CacheHit(benchmark::State& state) {
  const auto stub = v1::LoweringService::NewStub(Server().Channel());
  for (auto _ : state) {
    grpc::ClientContext context;
    google::longrunning::Operation operation;
    Check(stub->LowerModel(&context, Server().request, &operation));
    if (!operation.done()) std::abort();
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_BareUnaryCall)->Threads(1)->Threads(4)->UseRealTime();
BENCHMARK(BM_CacheHit)->Threads(1)->Threads(4)->UseRealTime();

}  // namespace
}  // namespace lowerd::bench
