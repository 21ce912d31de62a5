// LowerModel through gRPC: calls that the cache answers, beside bare unary calls to the same
// server, and jobs on a tiny model that run each time; pool_bench has the same jobs without gRPC
// and state.
//
//   lower_bench --benchmark_filter=Job

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

// A server that has the tiny model.
class Server {
 public:
  explicit Server(const std::vector<std::string>& flags = {}) : process_(flags) {
    const std::string model =
        ReadFileToString(std::string(LOWERD_TEST_MODELS) + "/tiny.pt", kModelLimit).value();
    const Digest digest = Digest::Of(model);
    model_.set_hash(digest.hex());
    model_.set_size_bytes(digest.size_bytes());
    reapi::BatchUpdateBlobsRequest upload;
    reapi::BatchUpdateBlobsRequest::Request& blob = *upload.add_requests();
    *blob.mutable_digest() = model_;
    blob.set_data(model);
    reapi::BatchUpdateBlobsResponse uploaded;
    grpc::ClientContext context;
    Check(reapi::ContentAddressableStorage::NewStub(Channel())->BatchUpdateBlobs(&context, upload,
                                                                                 &uploaded));
  }

  // A connection of its own.
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(process_.address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  v1::LowerModelRequest Request(const std::vector<std::string>& targets) const {
    v1::LowerModelRequest request;
    *request.mutable_model() = model_;
    for (const std::string& path : targets) request.add_targets()->set_path(path);
    request.add_formats(v1::TORCHSCRIPT);
    request.add_formats(v1::LITE_BYTECODE);
    return request;
  }

 private:
  const LowerdProcess process_;
  reapi::Digest model_;
};

// Returns when the operation is done.
void Lower(v1::LoweringService::Stub& stub, const v1::LowerModelRequest& request) {
  google::longrunning::Operation operation;
  grpc::ClientContext start;
  Check(stub.LowerModel(&start, request, &operation));
  v1::WatchOperationRequest watch;
  watch.set_name(operation.name());
  grpc::ClientContext watching;
  const auto reader = stub.WatchOperation(&watching, watch);
  while (reader->Read(&operation)) {
  }
  Check(reader->Finish());
  if (operation.has_response()) return;
  std::cerr << operation.ShortDebugString() << "\n";
  std::exit(1);
}

struct WarmServer {
  WarmServer() { Lower(*v1::LoweringService::NewStub(server.Channel()), request); }

  const Server server;
  const v1::LowerModelRequest request = server.Request({"a"});
};

const WarmServer& Warm() {
  static const WarmServer warm;
  return warm;
}

void BM_BareUnaryCall(benchmark::State& state) {
  const auto stub = grpc::health::v1::Health::NewStub(Warm().server.Channel());
  for (auto _ : state) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    Check(stub->Check(&context, {}, &response));
  }
  state.SetItemsProcessed(state.iterations());
}

void BM_CacheHit(benchmark::State& state) {
  const auto stub = v1::LoweringService::NewStub(Warm().server.Channel());
  for (auto _ : state) {
    grpc::ClientContext context;
    google::longrunning::Operation operation;
    Check(stub->LowerModel(&context, Warm().request, &operation));
    if (!operation.done()) std::abort();
  }
  state.SetItemsProcessed(state.iterations());
}

// `workers` workers kept busy by two clients each, so that none waits for a client; items are jobs.
void Jobs(benchmark::State& state, const std::vector<std::string>& targets, int jobs) {
  const int workers = static_cast<int>(state.range(0));
  const Server server({"--workers", std::to_string(workers)});
  for (auto _ : state) {
    std::atomic<int> left = jobs;
    std::vector<std::thread> clients;
    for (int i = 0; i < 2 * workers; ++i) {
      clients.emplace_back([&, i] {
        const auto stub = v1::LoweringService::NewStub(server.Channel());
        v1::LowerModelRequest request = server.Request(targets);
        request.set_cache_policy(v1::BYPASS);
        // Requests that are alike share a job.
        request.set_artifact_stem("client" + std::to_string(i));
        while (left.fetch_sub(1) > 0) Lower(*stub, request);
      });
    }
    for (std::thread& client : clients) client.join();
  }
  state.SetItemsProcessed(state.iterations() * jobs);
}

void BM_TinyModelJobs(benchmark::State& state) { Jobs(state, {"a", "b", "c"}, 50); }
BENCHMARK(BM_TinyModelJobs)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_TinyModelOneTargetJobs(benchmark::State& state) { Jobs(state, {"a"}, 50); }
BENCHMARK(BM_TinyModelOneTargetJobs)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

BENCHMARK(BM_BareUnaryCall)->Threads(1)->Threads(4)->UseRealTime();
BENCHMARK(BM_CacheHit)->Threads(1)->Threads(4)->UseRealTime();

}  // namespace
}  // namespace lowerd::bench
