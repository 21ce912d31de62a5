#include "server/byte_stream_service.h"

#include "server/blob_reader.h"
#include "server/blob_receiver.h"
#include "server/client_identity.h"
#include "server/unary_call.h"
#include "src/base/error.h"
#include "src/rpc/grpc_status.h"
#include "src/rpc/resource_name.h"

namespace lowerd::server {
namespace {

// A stream that ends at once. Owns itself.
template <typename Reactor>
class Refusal final : public Reactor {
 public:
  explicit Refusal(const absl::Status& status) { this->Finish(rpc::ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* ByteStreamService::Read(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto place = clients_.Enter(ClientIdentity(*context));
  if (!place.ok()) return new Refusal<grpc::ServerWriteReactor<grpc::ByteBuffer>>(place.status());
  return new BlobReader(blobs_, pool_, transfers_, stalls_.Watch(*context), *std::move(place),
                        *request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ByteStreamService::Write(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  auto place = clients_.Enter(ClientIdentity(*context));
  if (!place.ok()) return new Refusal<grpc::ServerReadReactor<grpc::ByteBuffer>>(place.status());
  return new BlobReceiver(blobs_, pool_, transfers_, stalls_.Watch(*context), *std::move(place),
                          *response);
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
