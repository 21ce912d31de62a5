#include "server/call_log.h"

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

#include "server/logging.h"

namespace lowerd::server {
namespace {

// Faults of the server, which somebody should look at; others are the callers'.
bool IsServerFault(absl::string_view code) {
  return code == "INTERNAL" || code == "UNKNOWN" || code == "DATA_LOSS";
}

LogLevel LevelOf(const CallRecord& call) {
  if (IsServerFault(call.code)) return LogLevel::kWarning;
  return absl::StartsWith(call.method, "/grpc.") ? LogLevel::kDebug : LogLevel::kInfo;
}

}  // namespace

void CallLog::OnStatus(const CallRecord& call) {
  metrics_.CountCall(call.method, call.code, call.duration);
  if (!call.trace.trace_id.empty() && absl::EndsWith(call.method, "/LowerModel") &&
      !call.operation.empty()) {
    traces_.Remember(call.operation, call.trace.trace_id);
  }
}

void CallLog::OnEnd(const CallRecord& call) {
  LogEvent(LevelOf(call), "call ended",
           {{"method", call.method},
            {"client", call.client},
            {"operation", call.operation},
            {"trace_id", call.trace.trace_id},
            {"tool", call.trace.tool},
            {"invocation", call.trace.invocation},
            {"action", call.trace.action},
            {"code", std::string(call.code)},
            {"reason", call.reason},
            {"seconds", absl::StrFormat("%.6f", absl::ToDoubleSeconds(call.duration))},
            {"error", call.message}});
}

}  // namespace lowerd::server
