#include "server/call_observer.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "google/longrunning/operations.pb.h"
#include <grpcpp/server_context.h>

#include "server/client_identity.h"
#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

absl::string_view CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::OK:
      return "OK";
    case grpc::CANCELLED:
      return "CANCELLED";
    case grpc::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::ABORTED:
      return "ABORTED";
    case grpc::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::INTERNAL:
      return "INTERNAL";
    case grpc::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::DATA_LOSS:
      return "DATA_LOSS";
    default:
      return "UNKNOWN";
  }
}

// Methods that answer operations.
bool AnswersOperations(absl::string_view method) {
  return absl::EndsWith(method, "/LowerModel") || absl::EndsWith(method, "/WatchOperation") ||
         absl::EndsWith(method, "/GetOperation") || absl::EndsWith(method, "/WaitOperation");
}

class CallInterceptor final : public grpc::experimental::Interceptor {
 public:
  CallInterceptor(ServerRpcInfo& call, CallObserver& observer) : call_(call), observer_(observer) {}
  // gRPC drops its interceptors when the call is over.
  ~CallInterceptor() override {
    if (record_.has_value()) observer_.OnEnd(*record_);
  }

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE) &&
        AnswersOperations(call_.method())) {
      // The message has the type of the method's answers.
      const auto* operation =
          static_cast<const google::longrunning::Operation*>(batch->GetSendMessage());
      if (operation != nullptr) operation_ = operation->name();
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Record(batch->GetSendStatus());
    }
    batch->Proceed();
  }

 private:
  void Record(const grpc::Status& status) {
    const grpc::ServerContextBase& context = *call_.server_context();
    CallRecord& record = record_.emplace();
    record.method = call_.method();
    record.client = ClientIdentity(context);
    record.trace = TraceContextOf(context.client_metadata());
    record.operation = operation_;
    record.code = CodeName(status.error_code());
    if (!status.ok()) {
      record.reason = ReasonOf(rpc::FromGrpc(status));
      record.message = status.error_message();
    }
    record.duration = absl::Now() - start_;
    observer_.OnStatus(record);
  }

  ServerRpcInfo& call_;
  CallObserver& observer_;
  const absl::Time start_ = absl::Now();
  std::string operation_;
  std::optional<CallRecord> record_;
};

class CallInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallInterceptorFactory(CallObserver& observer) : observer_(observer) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override {
    return new CallInterceptor(*call, observer_);
  }

 private:
  CallObserver& observer_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallInterceptor(
    CallObserver& observer) {
  return std::make_unique<CallInterceptorFactory>(observer);
}

}  // namespace lowerd::server
