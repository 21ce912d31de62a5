#include "server/unary_call.h"

#include <utility>

#include <grpcpp/server_context.h>

#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

class BlockingCall final : public grpc::ServerUnaryReactor {
 public:
  BlockingCall(ThreadPool& pool, std::function<absl::Status(const Cancellation&)> body) {
    // OnDone comes only after Finish, so `this` outlives the task.
    pool.Schedule([this, body = std::move(body)] {
      absl::Status status = cancellation_.cancelled()
                                ? MakeError(Reason::kOperationCancelled, "the caller went away")
                                : body(cancellation_);
      Finish(rpc::ToGrpc(WithReason(status)));
    });
  }

  void OnCancel() override { cancellation_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  Cancellation cancellation_;
};

}  // namespace

grpc::ServerUnaryReactor* RunBlocking(ThreadPool& pool,
                                      std::function<absl::Status(const Cancellation&)> body) {
  return new BlockingCall(pool, std::move(body));
}

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext& context,
                                    const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(rpc::ToGrpc(WithReason(status)));
  return reactor;
}

}  // namespace lowerd::server
