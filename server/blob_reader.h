#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/client_limits.h"
#include "server/stall_watch.h"
#include "server/transfer_counts.h"
#include "server/zstd_stream.h"
#include "src/base/thread_pool.h"
#include "src/blob/blob_store.h"
#include "src/rpc/resource_name.h"

namespace lowerd::server {

// One ByteStream.Read call: one message is under way at a time, so a slow reader costs one chunk.
// The reactor owns itself.
class BlobReader final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  BlobReader(blob::BlobStore& blobs, ThreadPool& pool, TransferCounts& transfers,
             std::unique_ptr<StallWatch::Stream> stall, ClientLimits::Place place,
             grpc::ByteBuffer request);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  class Mapping;

  // Both run on the pool.
  void Begin(blob::BlobStore& blobs);
  void Next();
  absl::Status Open(blob::BlobStore& blobs);
  // The next response; empty at the end.
  std::optional<grpc::ByteBuffer> Chunk();

  ThreadPool& pool_;
  TransferCounts& transfers_;
  const std::unique_ptr<StallWatch::Stream> stall_;
  const ClientLimits::Place place_;
  grpc::ByteBuffer request_;
  rpc::ResourceName name_;
  std::shared_ptr<Mapping> mapping_;
  int64_t position_ = 0;
  int64_t end_ = 0;
  std::optional<ZstdCompressor> zstd_;
  bool zstd_ended_ = false;
  // Being sent; gRPC reads it.
  grpc::ByteBuffer outgoing_;
};

}  // namespace lowerd::server
