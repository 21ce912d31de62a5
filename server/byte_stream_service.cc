#include "server/byte_stream_service.h"

#include "server/blob_reader.h"
#include "server/blob_receiver.h"
#include "server/unary_call.h"
#include "src/base/error.h"
#include "src/rpc/resource_name.h"

namespace lowerd::server {

grpc::ServerWriteReactor<grpc::ByteBuffer>* ByteStreamService::Read(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new BlobReader(blobs_, pool_, transfers_, stalls_.Watch(*context), *request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ByteStreamService::Write(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  return new BlobReceiver(blobs_, pool_, transfers_, stalls_.Watch(*context), *response);
}

grpc::ServerUnaryReactor* ByteStreamService::QueryWriteStatus(
    grpc::CallbackServerContext* context,
    const google::bytestream::QueryWriteStatusRequest* request,
    google::bytestream::QueryWriteStatusResponse* response) {
  auto name = rpc::ResourceName::ParseWrite(request->resource_name());
  if (!name.ok()) return FinishNow(*context, name.status());
  return RunBlocking(pool_, [this, response, name = *std::move(name)](const Cancellation&) {
    auto state = blobs_.QueryWrite(name.digest, name.upload_id);
    if (!state.ok()) return state.status();
    const bool restart = name.compression != rpc::Compression::kIdentity && !state->complete;
    response->set_committed_size(restart ? 0 : state->committed_size);
    response->set_complete(state->complete);
    return absl::OkStatus();
  });
}

}  // namespace lowerd::server
