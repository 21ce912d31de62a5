#pragma once

#include <exception>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "src/base/error.h"

namespace lowerd::lowering {

// libtorch's own message: without C++ backtrace and "Exception raised from", in one line, at most
// `limit` bytes of UTF-8.
std::string TorchMessage(const std::exception& error, size_t limit = 1500);

// Folds white space and control characters to single spaces, and cuts at `limit` bytes.
std::string FoldedText(absl::string_view text, size_t limit = 1500);

// Runs `body` and turns what it throws into a status: std::bad_alloc and failed allocations of
// libtorch into OUT_OF_MEMORY, anything else into `reason` with "{what}: {message}".
absl::Status CatchTorch(Reason reason, absl::string_view what,
                        const std::function<absl::Status()>& body);

}  // namespace lowerd::lowering
