#include "src/base/error.h"

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

#include "src/base/utf8.h"

namespace lowerd {
namespace {

// What a caller sent is quoted to this length, in bytes.
constexpr size_t kMaxQuoted = 200;
constexpr absl::string_view kTypePrefix = "type.googleapis.com/";

struct ReasonEntry {
  Reason reason;
  absl::string_view name;
  absl::StatusCode code;
};

constexpr ReasonEntry kReasons[] = {
    {Reason::kModelNotTorchscript, "MODEL_NOT_TORCHSCRIPT", absl::StatusCode::kInvalidArgument},
    {Reason::kModelCorrupt, "MODEL_CORRUPT", absl::StatusCode::kInvalidArgument},
    {Reason::kModelTooNew, "MODEL_TOO_NEW", absl::StatusCode::kFailedPrecondition},
    {Reason::kModuleNotFound, "MODULE_NOT_FOUND", absl::StatusCode::kNotFound},
    {Reason::kModuleIsNone, "MODULE_IS_NONE", absl::StatusCode::kFailedPrecondition},
    {Reason::kMethodNotFound, "METHOD_NOT_FOUND", absl::StatusCode::kNotFound},
    {Reason::kBackendNotFound, "BACKEND_NOT_FOUND", absl::StatusCode::kNotFound},
    {Reason::kUnsupportedSignature, "UNSUPPORTED_SIGNATURE", absl::StatusCode::kFailedPrecondition},
    {Reason::kMissingOperators, "MISSING_OPERATORS", absl::StatusCode::kFailedPrecondition},
    {Reason::kMissingClasses, "MISSING_CLASSES", absl::StatusCode::kFailedPrecondition},
    {Reason::kAttributeAccess, "ATTRIBUTE_ACCESS", absl::StatusCode::kFailedPrecondition},
    {Reason::kOverlappingTargets, "OVERLAPPING_TARGETS", absl::StatusCode::kInvalidArgument},
    {Reason::kAlreadyLowered, "ALREADY_LOWERED", absl::StatusCode::kFailedPrecondition},
    {Reason::kBackendFailed, "BACKEND_FAILED", absl::StatusCode::kInternal},
    {Reason::kWorkerCrashed, "WORKER_CRASHED", absl::StatusCode::kInternal},
    {Reason::kOutOfMemory, "OUT_OF_MEMORY", absl::StatusCode::kResourceExhausted},
    {Reason::kDeadlineExceeded, "DEADLINE_EXCEEDED", absl::StatusCode::kDeadlineExceeded},
    {Reason::kUnsupportedByFormat, "UNSUPPORTED_BY_FORMAT", absl::StatusCode::kFailedPrecondition},
    {Reason::kVerificationFailed, "VERIFICATION_FAILED", absl::StatusCode::kInternal},
    {Reason::kQueueFull, "QUEUE_FULL", absl::StatusCode::kResourceExhausted},
    {Reason::kBlobMissing, "BLOB_MISSING", absl::StatusCode::kFailedPrecondition},
    {Reason::kStoreFull, "STORE_FULL", absl::StatusCode::kResourceExhausted},
    {Reason::kInvalidRequest, "INVALID_REQUEST", absl::StatusCode::kInvalidArgument},
    {Reason::kResourceNotFound, "RESOURCE_NOT_FOUND", absl::StatusCode::kNotFound},
    {Reason::kDigestMismatch, "DIGEST_MISMATCH", absl::StatusCode::kInvalidArgument},
    {Reason::kOffsetOutOfRange, "OFFSET_OUT_OF_RANGE", absl::StatusCode::kOutOfRange},
    {Reason::kNotFullyLowered, "NOT_FULLY_LOWERED", absl::StatusCode::kFailedPrecondition},
    {Reason::kOperationCancelled, "OPERATION_CANCELLED", absl::StatusCode::kCancelled},
    {Reason::kOperationState, "OPERATION_STATE", absl::StatusCode::kFailedPrecondition},
    {Reason::kLimitExceeded, "LIMIT_EXCEEDED", absl::StatusCode::kResourceExhausted},
    {Reason::kServerUnavailable, "SERVER_UNAVAILABLE", absl::StatusCode::kUnavailable},
    {Reason::kInternalError, "INTERNAL_ERROR", absl::StatusCode::kInternal},
    {Reason::kNotSupported, "NOT_SUPPORTED", absl::StatusCode::kUnimplemented},
    {Reason::kNotAuthenticated, "NOT_AUTHENTICATED", absl::StatusCode::kUnauthenticated},
    {Reason::kNotAllowed, "NOT_ALLOWED", absl::StatusCode::kPermissionDenied},
};

constexpr bool InEnumOrder() {
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    if (kReasons[i].reason != static_cast<Reason>(i)) return false;
  }
  return true;
}
static_assert(InEnumOrder(), "kReasons must list every Reason in the order of the enum");

const ReasonEntry& EntryOf(Reason reason) { return kReasons[static_cast<size_t>(reason)]; }

template <typename Message>
std::string TypeUrl() {
  return absl::StrCat(kTypePrefix, Message::descriptor()->full_name());
}

template <typename Message>
void SetDetail(absl::Status& status, const Message& detail) {
  status.SetPayload(TypeUrl<Message>(), absl::Cord(detail.SerializeAsString()));
}

template <typename Message>
bool GetDetail(const absl::Status& status, Message& detail) {
  const auto payload = status.GetPayload(TypeUrl<Message>());
  return payload.has_value() && detail.ParseFromString(std::string(*payload));
}

// Messages go into protobuf strings and terminals, and may quote what a hostile file holds.
std::string OneLine(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (length == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f)) {
      out.push_back(' ');
    } else {
      out.append(text.data(), length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

Reason ReasonForCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return Reason::kInvalidRequest;
    case absl::StatusCode::kNotFound:
      return Reason::kResourceNotFound;
    case absl::StatusCode::kCancelled:
      return Reason::kOperationCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return Reason::kDeadlineExceeded;
    case absl::StatusCode::kResourceExhausted:
      return Reason::kLimitExceeded;
    case absl::StatusCode::kOutOfRange:
      return Reason::kOffsetOutOfRange;
    case absl::StatusCode::kUnavailable:
      return Reason::kServerUnavailable;
    case absl::StatusCode::kUnimplemented:
      return Reason::kNotSupported;
    case absl::StatusCode::kUnauthenticated:
      return Reason::kNotAuthenticated;
    case absl::StatusCode::kPermissionDenied:
      return Reason::kNotAllowed;
    case absl::StatusCode::kFailedPrecondition:
      return Reason::kOperationState;
    default:
      return Reason::kInternalError;
  }
}

}  // namespace

absl::string_view ReasonName(Reason reason) { return EntryOf(reason).name; }

absl::StatusCode ReasonCode(Reason reason) { return EntryOf(reason).code; }

absl::Status MakeError(Reason reason, absl::string_view message,
                       const std::map<std::string, std::string>& metadata) {
  absl::Status status(ReasonCode(reason), OneLine(message));
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(ReasonName(reason)));
  info.set_domain("lowerd");
  for (const auto& [key, value] : metadata)
    (*info.mutable_metadata())[OneLine(key)] = OneLine(value);
  SetDetail(status, info);
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return GetDetail(status, info) ? info.reason() : "";
}

bool HasReason(const absl::Status& status, Reason reason) {
  return ReasonOf(status) == ReasonName(reason);
}

absl::Status WithReason(const absl::Status& status) {
  if (status.ok() || !ReasonOf(status).empty()) return status;
  return MakeError(ReasonForCode(status.code()), status.message());
}

absl::Status MissingBlobsError(absl::Span<const Digest> blobs) {
  google::rpc::PreconditionFailure failure;
  std::string first;
  for (const Digest& blob : blobs) {
    auto* violation = failure.add_violations();
    violation->set_type("MISSING");
    violation->set_subject(absl::StrCat("blobs/", blob.ToString()));
    if (first.empty()) first = blob.ToString();
  }
  absl::Status status = MakeError(
      Reason::kBlobMissing,
      absl::StrCat("blob ", first,
                   blobs.size() > 1 ? absl::StrCat(" and ", blobs.size() - 1, " more") : "",
                   " is not on the server; upload it and call again"));
  SetDetail(status, failure);
  return status;
}

absl::Status FieldError(absl::string_view field, absl::string_view description) {
  absl::Status status = MakeError(Reason::kInvalidRequest, absl::StrCat(field, ": ", description));
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(OneLine(field));
  violation->set_description(OneLine(description));
  SetDetail(status, bad);
  return status;
}

absl::Status NotFoundError(absl::string_view resource_type, absl::string_view name) {
  name = name.substr(0, kMaxQuoted);
  absl::Status status = MakeError(Reason::kResourceNotFound,
                                  absl::StrCat("there is no ", resource_type, " \"", name, "\""));
  google::rpc::ResourceInfo info;
  info.set_resource_type(std::string(resource_type));
  info.set_resource_name(OneLine(name));
  SetDetail(status, info);
  return status;
}

void SetRetryDelay(absl::Status& status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  info.mutable_retry_delay()->set_seconds(seconds);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  SetDetail(status, info);
}

absl::Duration RetryDelayOf(const absl::Status& status) {
  google::rpc::RetryInfo info;
  if (!GetDetail(status, info)) return absl::ZeroDuration();
  return absl::Seconds(info.retry_delay().seconds()) +
         absl::Nanoseconds(info.retry_delay().nanos());
}

std::string SerializeStatus(const absl::Status& status) {
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(std::string(status.message()));
  status.ForEachPayload([&out](absl::string_view type_url, const absl::Cord& payload) {
    auto* detail = out.add_details();
    detail->set_type_url(std::string(type_url));
    detail->set_value(std::string(payload));
  });
  return out.SerializeAsString();
}

absl::Status ParseStatus(absl::string_view bytes) {
  google::rpc::Status in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return MakeError(Reason::kInternalError, "received a status that cannot be parsed");
  }
  if (in.code() == 0) return absl::OkStatus();
  const bool known = in.code() >= 1 && in.code() <= 16;
  absl::Status status(known ? static_cast<absl::StatusCode>(in.code()) : absl::StatusCode::kUnknown,
                      in.message());
  for (const auto& detail : in.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

absl::Status ErrnoError(int error_number, absl::string_view what) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT;
  if (full) {
    return MakeError(Reason::kStoreFull, absl::StrCat("the server's disk is full (", what,
                                                      "); its operator must make room"));
  }
  const Reason reason = error_number == ENOMEM ? Reason::kOutOfMemory : Reason::kInternalError;
  return MakeError(reason, absl::StrCat(what, ": ", std::strerror(error_number)));
}

}  // namespace lowerd
