#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <grpcpp/support/server_interceptor.h>

#include "server/trace_context.h"

namespace lowerd::server {

// A gRPC call that has ended.
struct CallRecord {
  // "/package.Service/Method" of a registered method.
  std::string method;
  // See ClientIdentity.
  std::string client;
  TraceContext trace;
  // The operation that was answered last; empty if the call answered none.
  std::string operation;
  // Name of the status code, "OK" or "INVALID_ARGUMENT" and so on.
  absl::string_view code = "UNKNOWN";
  // Of an error; may be empty.
  std::string reason;
  std::string message;
  absl::Duration duration;
};

// Told about each call, on gRPC's threads; must not block for long. Thread-safe.
class CallObserver {
 public:
  virtual ~CallObserver() = default;

  // Before the status goes out: what a caller may see changed when it has its answer.
  virtual void OnStatus(const CallRecord& call) = 0;
  // Afterwards, so that no caller waits for it.
  virtual void OnEnd(const CallRecord& call) = 0;
};

// Register it with ServerBuilder::experimental().SetInterceptorCreators. Changes nothing about the
// calls. `observer` must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallInterceptor(
    CallObserver& observer);

}  // namespace lowerd::server
