#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/client_limits.h"
#include "server/stall_watch.h"
#include "server/transfer_counts.h"
#include "server/write_request_parser.h"
#include "server/zstd_stream.h"
#include "src/base/thread_pool.h"
#include "src/blob/blob_store.h"
#include "src/rpc/resource_name.h"

namespace lowerd::server {

// One ByteStream.Write call. While one message is hashed and stored on the pool, the next is
// received. The reactor owns itself.
class BlobReceiver final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  BlobReceiver(blob::BlobStore& blobs, ThreadPool& pool, TransferCounts& transfers,
               std::unique_ptr<StallWatch::Stream> stall, ClientLimits::Place place,
               grpc::ByteBuffer& response);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Runs on the pool, one at a time: takes queued messages until there are none, or others have
  // their turn.
  void Work();
  // What one message asks for; a value ends the call with that committed size.
  absl::StatusOr<std::optional<int64_t>> Take(grpc::ByteBuffer& message);
  absl::StatusOr<std::optional<int64_t>> Begin(const ParsedWriteRequest& request);
  absl::Status Store(const ParsedWriteRequest& request);
  // Ends the call once.
  void End(const absl::Status& status, int64_t committed_size);
  void StartReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinalResult();

  blob::BlobStore& blobs_;
  ThreadPool& pool_;
  TransferCounts& transfers_;
  grpc::ByteBuffer& response_;
  const std::unique_ptr<StallWatch::Stream> stall_;
  const ClientLimits::Place place_;

  absl::Mutex mutex_;
  // Being received; gRPC writes to it without the lock.
  grpc::ByteBuffer incoming_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  // No more messages will come.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> result_ ABSL_GUARDED_BY(mutex_);

  // Of the work only, which is never on two threads at once.
  std::string resource_name_;
  rpc::ResourceName name_;
  std::unique_ptr<blob::BlobWriter> writer_;
  std::optional<ZstdDecompressor> zstd_;
  // Of the stream that is written (compressed bytes for compressed uploads).
  int64_t offset_ = 0;
};

}  // namespace lowerd::server
