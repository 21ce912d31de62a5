#pragma once

#include "build/bazel/remote/execution/v2/remote_execution.grpc.pb.h"
#include "server/transfer_counts.h"
#include "src/base/thread_pool.h"
#include "src/blob/blob_store.h"

namespace lowerd::server {

// Blobs of one batch call together, in bytes, and digests of one FindMissingBlobs: what fits into
// gRPC's default message limit of 4 MiB.
inline constexpr int64_t kMaxBatchBytes = int64_t{7} << 19;

// build.bazel.remote.execution.v2.ContentAddressableStorage over a blob store. Thread-safe; nothing
// blocks in a reactor.
class CasService final
    : public build::bazel::remote::execution::v2::ContentAddressableStorage::CallbackService {
 public:
  // Both must outlive this object, which must outlive the gRPC server.
  CasService(blob::BlobStore& blobs, ThreadPool& pool) : blobs_(blobs), pool_(pool) {}

  grpc::ServerUnaryReactor* FindMissingBlobs(
      grpc::CallbackServerContext* context,
      const build::bazel::remote::execution::v2::FindMissingBlobsRequest* request,
      build::bazel::remote::execution::v2::FindMissingBlobsResponse* response) override;
  grpc::ServerUnaryReactor* BatchUpdateBlobs(
      grpc::CallbackServerContext* context,
      const build::bazel::remote::execution::v2::BatchUpdateBlobsRequest* request,
      build::bazel::remote::execution::v2::BatchUpdateBlobsResponse* response) override;
  grpc::ServerUnaryReactor* BatchReadBlobs(
      grpc::CallbackServerContext* context,
      const build::bazel::remote::execution::v2::BatchReadBlobsRequest* request,
      build::bazel::remote::execution::v2::BatchReadBlobsResponse* response) override;

  // Of batches since the start.
  const TransferCounts& transfers() const { return transfers_; }

 private:
  blob::BlobStore& blobs_;
  ThreadPool& pool_;
  TransferCounts transfers_;
};

// build.bazel.remote.execution.v2.Capabilities: what CasService and ByteStreamService do.
class CapabilitiesService final
    : public build::bazel::remote::execution::v2::Capabilities::CallbackService {
 public:
  explicit CapabilitiesService(int64_t max_blob_bytes) : max_blob_bytes_(max_blob_bytes) {}

  grpc::ServerUnaryReactor* GetCapabilities(
      grpc::CallbackServerContext* context,
      const build::bazel::remote::execution::v2::GetCapabilitiesRequest* request,
      build::bazel::remote::execution::v2::ServerCapabilities* response) override;

 private:
  const int64_t max_blob_bytes_;
};

}  // namespace lowerd::server
