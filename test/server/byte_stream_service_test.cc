#include "server/byte_stream_service.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "google/bytestream/bytestream.grpc.pb.h"
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "server/zstd_stream.h"
#include "src/base/error.h"
#include "src/blob/disk_blob_store.h"
#include "src/rpc/grpc_status.h"
#include "src/rpc/resource_name.h"
#include "test/support/temp_dir.h"

namespace lowerd::server {
namespace {

using google::bytestream::ByteStream;

// A real server on a port of its own.
class ByteStreamServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    blob::DiskBlobStore::Options options;
    options.directory = folder_.File("blobs");
    options.fsync = false;
    auto store = blob::DiskBlobStore::Create(options);
    ASSERT_TRUE(store.ok()) << store.status();
    blobs_ = *std::move(store);
    Serve(absl::Minutes(1));
  }

  void Serve(absl::Duration stall_limit, int streams_per_client = 128) {
    server_.reset();
    service_ = std::make_unique<ByteStreamService>(*blobs_, pool_, stall_limit, streams_per_client);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = ByteStream::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                    grpc::InsecureChannelCredentials()));
  }

  struct Result {
    absl::Status status;
    int64_t committed = 0;
  };
  // Sends `bytes` in messages of `chunk`; without `finish` the stream ends early.
  Result Write(const std::string& name, const std::string& bytes, int64_t offset = 0,
               bool finish = true, size_t chunk = 100'000) {
    grpc::ClientContext context;
    google::bytestream::WriteResponse response;
    auto stream = stub_->Write(&context, &response);
    for (size_t at = 0; at == 0 || at < bytes.size(); at += chunk) {
      google::bytestream::WriteRequest request;
      if (at == 0) request.set_resource_name(name);
      request.set_write_offset(offset + static_cast<int64_t>(at));
      request.set_data(bytes.substr(at, chunk));
      request.set_finish_write(finish && at + chunk >= bytes.size());
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    return {rpc::FromGrpc(stream->Finish()), response.committed_size()};
  }

  absl::StatusOr<std::string> Read(const std::string& name, int64_t offset = 0, int64_t limit = 0) {
    grpc::ClientContext context;
    google::bytestream::ReadRequest request;
    request.set_resource_name(name);
    request.set_read_offset(offset);
    request.set_read_limit(limit);
    auto stream = stub_->Read(&context, request);
    std::string out;
    google::bytestream::ReadResponse response;
    while (stream->Read(&response)) {
      EXPECT_LE(response.data().size(), size_t{2} << 20);
      out += response.data();
    }
    const absl::Status status = rpc::FromGrpc(stream->Finish());
    if (!status.ok()) return status;
    return out;
  }

  static std::string WriteName(const Digest& digest, rpc::Compression compression = {}) {
    return rpc::ResourceName{"", "id", compression, digest}.ToString();
  }
  static std::string ReadName(const Digest& digest, rpc::Compression compression = {}) {
    return rpc::ResourceName{"", "", compression, digest}.ToString();
  }

  test::TempDir folder_;
  std::unique_ptr<blob::BlobStore> blobs_;
  std::unique_ptr<ByteStreamService> service_;
  ThreadPool pool_{4};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ByteStream::Stub> stub_;
  const std::string data_ = std::string(2'500'000, 'd') + "end";
  const Digest digest_ = Digest::Of(data_);
};

TEST_F(ByteStreamServiceTest, WhatIsWrittenIsReadBackWholeAndInParts) {
  EXPECT_EQ(Write(WriteName(digest_), data_).committed, digest_.size_bytes());
  EXPECT_EQ(*Read(ReadName(digest_)), data_);
  EXPECT_EQ(*Read(ReadName(digest_), digest_.size_bytes() - 3), "end");
  EXPECT_EQ(*Read(ReadName(digest_), 10, 5), "ddddd");
  EXPECT_EQ(*Read(ReadName(digest_), digest_.size_bytes()), "");
  EXPECT_TRUE(HasReason(Read(ReadName(digest_), digest_.size_bytes() + 1).status(),
                        Reason::kOffsetOutOfRange));
  EXPECT_TRUE(HasReason(Read(ReadName(digest_), -1).status(), Reason::kOffsetOutOfRange));
  EXPECT_TRUE(HasReason(Read(ReadName(Digest::Of("absent"))).status(), Reason::kResourceNotFound));
}

TEST_F(ByteStreamServiceTest, UploadThatHangsIsCutOffAndCanGoOn) {
  Serve(absl::Milliseconds(200));
  grpc::ClientContext context;
  google::bytestream::WriteResponse response;
  auto stream = stub_->Write(&context, &response);
  google::bytestream::WriteRequest request;
  request.set_resource_name(WriteName(digest_));
  request.set_data(data_.substr(0, 1000));
  ASSERT_TRUE(stream->Write(request));
  // Nothing more comes; the server ends it.
  EXPECT_FALSE(stream->Finish().ok());
  google::bytestream::QueryWriteStatusRequest query;
  query.set_resource_name(WriteName(digest_));
  google::bytestream::QueryWriteStatusResponse state;
  grpc::ClientContext asking;
  ASSERT_TRUE(stub_->QueryWriteStatus(&asking, query, &state).ok());
  EXPECT_EQ(state.committed_size(), 1000);
  EXPECT_TRUE(Write(WriteName(digest_), data_.substr(1000), 1000).status.ok());
}

TEST_F(ByteStreamServiceTest, ExistingBlobEndsAnUploadAtOnceWithItsSize) {
  ASSERT_TRUE(Write(WriteName(digest_), data_).status.ok());
  const Result again = Write(WriteName(digest_), data_);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.committed, digest_.size_bytes());
  EXPECT_EQ(Write(WriteName(digest_, rpc::Compression::kZstd), "any").committed, -1);
}

TEST_F(ByteStreamServiceTest, StreamThatEndsEarlyKeepsItsBytesAndGoesOnFromThere) {
  EXPECT_TRUE(
      absl::IsCancelled(Write(WriteName(digest_), data_.substr(0, 900'000), 0, false).status));
  grpc::ClientContext context;
  google::bytestream::QueryWriteStatusRequest request;
  google::bytestream::QueryWriteStatusResponse response;
  request.set_resource_name(WriteName(digest_));
  ASSERT_TRUE(stub_->QueryWriteStatus(&context, request, &response).ok());
  EXPECT_EQ(response.committed_size(), 900'000);
  EXPECT_FALSE(response.complete());
  EXPECT_TRUE(HasReason(Write(WriteName(digest_), data_.substr(900'001), 900'001).status,
                        Reason::kInvalidRequest));
  EXPECT_TRUE(HasReason(Write(WriteName(digest_), data_, -1).status, Reason::kInvalidRequest));
  // What the server stored after the client had asked comes twice.
  const Result rest = Write(WriteName(digest_), data_.substr(850'000), 850'000);
  EXPECT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.committed, digest_.size_bytes());
  EXPECT_EQ(*Read(ReadName(digest_)), data_);
}

TEST_F(ByteStreamServiceTest, MoreStreamsUploadAtOnceThanThereAreThreads) {
  constexpr int kStreams = 24;
  std::vector<std::thread> clients;
  std::atomic<int> stored = 0;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      const std::string bytes = std::string(6'000'000, 'a') + std::to_string(i);
      if (Write(WriteName(Digest::Of(bytes)), bytes).status.ok()) ++stored;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(stored, kStreams);
}

TEST_F(ByteStreamServiceTest, ClientWithTooManyStreamsIsToldToComeBack) {
  Serve(absl::Minutes(1), /*streams_per_client=*/1);
  {
    grpc::ClientContext context;
    google::bytestream::WriteResponse response;
    auto stream = stub_->Write(&context, &response);
    google::bytestream::WriteRequest request;
    request.set_resource_name(WriteName(digest_));
    request.set_data(data_.substr(0, 10));
    ASSERT_TRUE(stream->Write(request));
    // The server has the first stream when it knows of its bytes.
    google::bytestream::QueryWriteStatusResponse state;
    while (state.committed_size() == 0) {
      grpc::ClientContext asking;
      google::bytestream::QueryWriteStatusRequest query;
      query.set_resource_name(WriteName(digest_));
      stub_->QueryWriteStatus(&asking, query, &state).ok();
    }
    const absl::Status upload = Write(WriteName(Digest::Of("x")), "x").status;
    EXPECT_TRUE(HasReason(upload, Reason::kQueueFull)) << upload;
    EXPECT_GT(RetryDelayOf(upload), absl::ZeroDuration());
    EXPECT_TRUE(HasReason(Read(ReadName(Digest::Of(""))).status(), Reason::kQueueFull));
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
  }
  // Its place is free as soon as the server has noticed.
  absl::Status status;
  do {
    status = Write(WriteName(Digest::Of("x")), "x").status;
  } while (HasReason(status, Reason::kQueueFull));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ByteStreamServiceTest, ZstdGoesBothWays) {
  std::string compressed;
  ZstdCompressor().Write(data_, true, &compressed);
  const Result result = Write(WriteName(digest_, rpc::Compression::kZstd), compressed, 0, true, 50);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.committed, static_cast<int64_t>(compressed.size()));
  EXPECT_EQ(*Read(ReadName(digest_)), data_);
  std::string back;
  ZstdDecompressor decompressor;
  ASSERT_TRUE(decompressor
                  .Write(*Read(ReadName(digest_, rpc::Compression::kZstd), 1000),
                         [&](absl::string_view bytes) {
                           back.append(bytes.data(), bytes.size());
                           return absl::OkStatus();
                         })
                  .ok());
  EXPECT_EQ(back, data_.substr(1000));
  EXPECT_TRUE(HasReason(Read(ReadName(digest_, rpc::Compression::kZstd), 0, 5).status(),
                        Reason::kInvalidRequest));
}

TEST_F(ByteStreamServiceTest, BombsAndCutCompressedUploadsAreRefused) {
  std::string bomb;
  ZstdCompressor().Write(std::string(100'000'000, '\0'), true, &bomb);
  EXPECT_TRUE(HasReason(Write(WriteName(digest_, rpc::Compression::kZstd), bomb).status,
                        Reason::kLimitExceeded));
  std::string compressed;
  ZstdCompressor().Write(data_, true, &compressed);
  compressed.resize(compressed.size() - 2);
  EXPECT_TRUE(HasReason(Write(WriteName(digest_, rpc::Compression::kZstd), compressed).status,
                        Reason::kInvalidRequest));
}

TEST_F(ByteStreamServiceTest, MalformedNamesAndWrongBytesAreRefused) {
  EXPECT_TRUE(HasReason(Write("nonsense", "x").status, Reason::kInvalidRequest));
  EXPECT_TRUE(HasReason(Write("", "x").status, Reason::kInvalidRequest));
  EXPECT_TRUE(
      HasReason(Write(WriteName(Digest::Of("right")), "wrong").status, Reason::kDigestMismatch));
  EXPECT_TRUE(
      HasReason(Write(WriteName(Digest::Of("a")), "too long").status, Reason::kLimitExceeded));
  EXPECT_TRUE(HasReason(Read("nonsense").status(), Reason::kInvalidRequest));
}

TEST_F(ByteStreamServiceTest, EmptyBlobNeedsNoUpload) {
  EXPECT_EQ(*Read(ReadName(Digest())), "");
  EXPECT_EQ(Write(WriteName(Digest()), "").committed, 0);
}

}  // namespace
}  // namespace lowerd::server
