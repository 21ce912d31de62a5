#include "client/cli/exit_status.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

#include "client/cli/text.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

constexpr absl::string_view kUsagePayload = "lowerctl/usage";

// Reasons come from the network; the line's form must hold whatever they are.
bool IsReason(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
}

}  // namespace

absl::Status UsageError(absl::string_view message) {
  absl::Status status = MakeError(Reason::kInvalidRequest, message);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

absl::Status AsUsageError(const absl::Status& status) {
  return status.ok() ? status : UsageError(status.message());
}

int ExitCode(const absl::Status& status) {
  if (status.GetPayload(kUsagePayload).has_value()) return kExitUsage;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAlreadyExists:
      return kExitRejected;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitUnreachable;
    default:
      return kExitFailed;
  }
}

std::string ErrorLine(const absl::Status& status) {
  std::string reason = ReasonOf(status);
  if (!IsReason(reason)) {
    // A status that gRPC or another server made; the reason that fits its code.
    reason = ReasonOf(WithReason(absl::Status(status.code(), status.message())));
  }
  const absl::string_view message = status.message().empty() ? "no message" : status.message();
  return absl::StrCat("lowerctl: ", absl::StatusCodeToString(status.code()), " [", reason,
                      "]: ", Printable(message));
}

absl::Status ErrorFromReason(absl::string_view reason, absl::string_view message) {
  // The enum has no count of its own; kNotAllowed is its last value.
  for (int i = 0; i <= static_cast<int>(Reason::kNotAllowed); ++i) {
    const Reason candidate = static_cast<Reason>(i);
    if (ReasonName(candidate) == reason) return MakeError(candidate, message);
  }
  absl::Status status(absl::StatusCode::kFailedPrecondition, message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("lowerd");
  status.SetPayload("type.googleapis.com/google.rpc.ErrorInfo",
                    absl::Cord(info.SerializeAsString()));
  return status;
}

}  // namespace lowerd::cli
