#pragma once

#include <poll.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "src/base/cancellation.h"

namespace lowerd::pool {

// Until when and unless what somebody waits.
struct Patience {
  absl::Time deadline = absl::InfiniteFuture();
  // May be null.
  const Cancellation* cancellation = nullptr;

  // OPERATION_CANCELLED or DEADLINE_EXCEEDED if it has run out; `doing` is part of the message
  // ("while {doing}").
  absl::Status Check(absl::string_view doing) const;
};

// Polls `polled` (whose revents it sets) until one is ready, patience has run out (which Check
// then tells) or `at_most` is over.
void Poll(absl::Span<pollfd> polled, const Patience& patience,
          absl::Duration at_most = absl::InfiniteDuration());

}  // namespace lowerd::pool
