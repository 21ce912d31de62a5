#pragma once

#include <functional>

#include "absl/status/status.h"
#include <grpcpp/support/server_callback.h>

#include "src/base/cancellation.h"
#include "src/base/thread_pool.h"

namespace lowerd::server {

// A unary call whose work may block: runs `body` on `pool` and finishes the call with its status.
// The call's request and response stay valid until then. `body` gets a Cancellation that follows
// the caller's. The reactor owns itself.
grpc::ServerUnaryReactor* RunBlocking(ThreadPool& pool,
                                      std::function<absl::Status(const Cancellation&)> body);

// A unary call that is answered at once.
grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext& context,
                                    const absl::Status& status);

}  // namespace lowerd::server
