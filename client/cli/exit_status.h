#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lowerd::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRejected = 3;
inline constexpr int kExitUnreachable = 4;
inline constexpr int kExitFailed = 5;

// INVALID_REQUEST that is the fault of the command line, found before any server was asked.
absl::Status UsageError(absl::string_view message);
// `status` as a UsageError with the same message; OK stays OK.
absl::Status AsUsageError(const absl::Status& status);

// What the program exits with: by code, but kExitUsage for a UsageError.
int ExitCode(const absl::Status& status);

// "lowerctl: <GRPC_CODE> [<REASON>]: <message>", one line without control characters and without
// the newline. `status` must not be OK.
std::string ErrorLine(const absl::Status& status);

// The error a problem of a plan would have ended a lowering with: its code follows from `reason`,
// FAILED_PRECONDITION if the reason is not known here.
absl::Status ErrorFromReason(absl::string_view reason, absl::string_view message);

}  // namespace lowerd::cli
