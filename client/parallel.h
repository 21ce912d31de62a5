#pragma once

#include <functional>

#include "absl/status/status.h"

namespace lowerd::client {

// Runs `task(0)` to `task(count - 1)` on at most `threads` threads (this one among them) and
// returns when all have ended. After a failure no further task starts; the first failure is
// returned.
absl::Status RunParallel(int count, int threads, const std::function<absl::Status(int)>& task);

}  // namespace lowerd::client
