#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "src/base/digest.h"

namespace lowerd {

// Why something failed: each has one name (lowerd.v1.ErrorReason spells and explains them) and one
// status code.
enum class Reason {
  kModelNotTorchscript,
  kModelCorrupt,
  kModelTooNew,
  kModuleNotFound,
  kModuleIsNone,
  kMethodNotFound,
  kBackendNotFound,
  kUnsupportedSignature,
  kMissingOperators,
  kMissingClasses,
  kAttributeAccess,
  kOverlappingTargets,
  kAlreadyLowered,
  kBackendFailed,
  kWorkerCrashed,
  kOutOfMemory,
  kDeadlineExceeded,
  kUnsupportedByFormat,
  kVerificationFailed,
  kQueueFull,
  kBlobMissing,
  kStoreFull,
  kInvalidRequest,
  kResourceNotFound,
  kDigestMismatch,
  kOffsetOutOfRange,
  kNotFullyLowered,
  kOperationCancelled,
  kOperationState,
  kLimitExceeded,
  kServerUnavailable,
  kInternalError,
  kNotSupported,
  kNotAuthenticated,
  kNotAllowed,
};

// "MODEL_CORRUPT" and so on.
absl::string_view ReasonName(Reason reason);
absl::StatusCode ReasonCode(Reason reason);

// The way to make an error: code from the reason, `message` for people (one line: what, where, what
// to do; control characters become spaces and what is no UTF-8 becomes U+FFFD), and one
// google.rpc.ErrorInfo payload with domain "lowerd". Details ride as payloads keyed by type URL.
absl::Status MakeError(Reason reason, absl::string_view message,
                       const std::map<std::string, std::string>& metadata = {});

// Name of the reason in `status`; empty if it has none.
std::string ReasonOf(const absl::Status& status);
bool HasReason(const absl::Status& status, Reason reason);

// `status` unchanged if it is OK or has a reason; else the same message under INTERNAL_ERROR (or
// under the reason that fits its code). For statuses that come out of libraries.
absl::Status WithReason(const absl::Status& status);

// BLOB_MISSING with one PreconditionFailure violation of type MISSING for each blob (REAPI).
absl::Status MissingBlobsError(absl::Span<const Digest> blobs);
// INVALID_REQUEST with one BadRequest violation.
absl::Status FieldError(absl::string_view field, absl::string_view description);
// RESOURCE_NOT_FOUND with ResourceInfo.
absl::Status NotFoundError(absl::string_view resource_type, absl::string_view name);
// Adds RetryInfo.
void SetRetryDelay(absl::Status& status, absl::Duration delay);
// Delay in RetryInfo; zero if there is none.
absl::Duration RetryDelayOf(const absl::Status& status);

// The bytes of a google.rpc.Status with code, message and all payloads as details, and back.
// Unparsable bytes give INTERNAL_ERROR. A canonical code outside of 0..16 becomes UNKNOWN.
std::string SerializeStatus(const absl::Status& status);
absl::Status ParseStatus(absl::string_view bytes);

// INTERNAL_ERROR (or STORE_FULL for ENOSPC and EDQUOT) from errno: "{what}: {strerror}".
absl::Status ErrnoError(int error_number, absl::string_view what);

// Evaluates an expression that gives absl::Status and returns it if it is not OK.
#define LOWERD_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status lowerd_status_ = (expr); !lowerd_status_.ok()) { \
      return lowerd_status_;                                          \
    }                                                                 \
  } while (false)

// LOWERD_ASSIGN_OR_RETURN(auto x, StatusOrExpression());
#define LOWERD_ASSIGN_OR_RETURN(lhs, expr) \
  LOWERD_ASSIGN_OR_RETURN_IMPL_(LOWERD_CONCAT_(lowerd_statusor_, __LINE__), lhs, expr)
#define LOWERD_CONCAT_INNER_(a, b) a##b
#define LOWERD_CONCAT_(a, b) LOWERD_CONCAT_INNER_(a, b)
#define LOWERD_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) {                                    \
    return statusor.status();                              \
  }                                                        \
  lhs = *std::move(statusor)

}  // namespace lowerd
