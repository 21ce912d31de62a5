#include "server/call_observer.h"

#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "google/bytestream/bytestream.grpc.pb.h"
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "build/bazel/remote/execution/v2/remote_execution.grpc.pb.h"
#include "server/byte_stream_service.h"
#include "server/cas_service.h"
#include "src/blob/disk_blob_store.h"
#include "test/support/temp_dir.h"

namespace lowerd::server {
namespace {

namespace reapi = build::bazel::remote::execution::v2;

class CallObserverTest : public testing::Test, private CallObserver {
 protected:
  void SetUp() override {
    blob::DiskBlobStore::Options options;
    options.directory = folder_.path();
    auto blobs = blob::DiskBlobStore::Create(options);
    ASSERT_TRUE(blobs.ok()) << blobs.status();
    blobs_ = *std::move(blobs);
    byte_stream_ = std::make_unique<ByteStreamService>(*blobs_, threads_);
    cas_ = std::make_unique<CasService>(*blobs_, threads_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(byte_stream_.get());
    builder.RegisterService(cas_.get());
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(MakeCallInterceptor(*this));
    builder.experimental().SetInterceptorCreators(std::move(creators));
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
  }
  void TearDown() override {
    server_->Shutdown();
    server_->Wait();
  }

  void OnStatus(const CallRecord& call) override {
    absl::MutexLock lock(&mutex_);
    methods_.push_back(call.method);
  }
  void OnEnd(const CallRecord& call) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(methods_, std::vector<std::string>{call.method}) << "the status comes first, once";
    methods_.clear();
    calls_.push_back(call);
  }

  CallRecord NextCall() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::vector<CallRecord>* calls) { return !calls->empty(); }, &calls_));
    CallRecord call = calls_.front();
    calls_.erase(calls_.begin());
    return call;
  }

  test::TempDir folder_;
  std::unique_ptr<blob::BlobStore> blobs_;
  std::unique_ptr<ByteStreamService> byte_stream_;
  std::unique_ptr<CasService> cas_;
  ThreadPool threads_{2};
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  absl::Mutex mutex_;
  // Of calls that have a status and have not ended.
  std::vector<std::string> methods_ ABSL_GUARDED_BY(mutex_);
  std::vector<CallRecord> calls_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(CallObserverTest, UnaryCallIsRecordedWithClientTraceAndDuration) {
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  reapi::FindMissingBlobsResponse response;
  ASSERT_TRUE(reapi::ContentAddressableStorage::NewStub(channel_)
                  ->FindMissingBlobs(&context, {}, &response)
                  .ok());
  const CallRecord call = NextCall();
  EXPECT_EQ(call.method,
            "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs");
  EXPECT_EQ(call.client, "ipv4:127.0.0.1");
  EXPECT_EQ(call.trace.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(call.code, "OK");
  EXPECT_EQ(call.reason, "");
  EXPECT_GT(call.duration, absl::ZeroDuration());
  EXPECT_LT(call.duration, absl::Minutes(1));
}

TEST_F(CallObserverTest, FailedCallIsRecordedWithCodeAndReason) {
  reapi::FindMissingBlobsRequest request;
  request.add_blob_digests()->set_hash("no hash");
  grpc::ClientContext context;
  reapi::FindMissingBlobsResponse response;
  EXPECT_FALSE(reapi::ContentAddressableStorage::NewStub(channel_)
                   ->FindMissingBlobs(&context, request, &response)
                   .ok());
  const CallRecord call = NextCall();
  EXPECT_EQ(call.code, "INVALID_ARGUMENT");
  EXPECT_EQ(call.reason, "INVALID_REQUEST");
  EXPECT_NE(call.message, "");
}

TEST_F(CallObserverTest, StreamsOnRawBuffersAreRecordedToo) {
  grpc::ClientContext context;
  google::bytestream::ReadRequest request;
  request.set_resource_name("nonsense");
  auto reader = google::bytestream::ByteStream::NewStub(channel_)->Read(&context, request);
  google::bytestream::ReadResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_FALSE(reader->Finish().ok());
  const CallRecord call = NextCall();
  EXPECT_EQ(call.method, "/google.bytestream.ByteStream/Read");
  EXPECT_EQ(call.code, "INVALID_ARGUMENT");
}

TEST_F(CallObserverTest, CallThatItsCallerGaveUpIsRecordedAsCancelled) {
  grpc::ClientContext context;
  google::bytestream::WriteResponse response;
  auto writer = google::bytestream::ByteStream::NewStub(channel_)->Write(&context, &response);
  context.TryCancel();
  EXPECT_FALSE(writer->Finish().ok());
  const CallRecord call = NextCall();
  EXPECT_EQ(call.method, "/google.bytestream.ByteStream/Write");
  EXPECT_EQ(call.code, "CANCELLED");
}

}  // namespace
}  // namespace lowerd::server
