#pragma once

#include "google/bytestream/bytestream.grpc.pb.h"

#include "server/client_limits.h"
#include "server/stall_watch.h"
#include "server/transfer_counts.h"
#include "src/base/thread_pool.h"
#include "src/blob/blob_store.h"

namespace lowerd::server {

// google.bytestream.ByteStream over a blob store. Blobs never pass through protobuf strings:
// requests are parsed in place and appended from the message's own memory, responses are slices of
// the mapped file. Thread-safe; nothing blocks in a reactor. Memory for each stream: at most
// 1 MiB and two messages.
//
// Compressed uploads cannot be resumed in the middle: QueryWriteStatus answers 0 for them.
class ByteStreamService final
    : public google::bytestream::ByteStream::WithRawCallbackMethod_Read<
          google::bytestream::ByteStream::WithRawCallbackMethod_Write<
              google::bytestream::ByteStream::WithCallbackMethod_QueryWriteStatus<
                  google::bytestream::ByteStream::Service>>> {
 public:
  // A stream whose client neither sends nor takes anything for `stall_limit` is cut off; a client
  // that has `streams_per_client` is refused more. Store and pool must outlive this object, which
  // must outlive the gRPC server.
  ByteStreamService(blob::BlobStore& blobs, ThreadPool& pool,
                    absl::Duration stall_limit = absl::Minutes(1), int streams_per_client = 128)
      : blobs_(blobs), pool_(pool), stalls_(stall_limit), clients_(streams_per_client) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Read(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Write(grpc::CallbackServerContext* context,
                                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* QueryWriteStatus(
      grpc::CallbackServerContext* context,
      const google::bytestream::QueryWriteStatusRequest* request,
      google::bytestream::QueryWriteStatusResponse* response) override;

  // Of uploads and downloads since the start.
  const TransferCounts& transfers() const { return transfers_; }

 private:
  blob::BlobStore& blobs_;
  ThreadPool& pool_;
  TransferCounts transfers_;
  StallWatch stalls_;
  ClientLimits clients_;
};

}  // namespace lowerd::server
