#include "src/pool/wait.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "src/base/error.h"

namespace lowerd::pool {

absl::Status Patience::Check(absl::string_view doing) const {
  if (cancellation != nullptr && cancellation->cancelled()) {
    return MakeError(Reason::kOperationCancelled, absl::StrCat("cancelled while ", doing));
  }
  if (absl::Now() >= deadline) {
    return MakeError(Reason::kDeadlineExceeded,
                     absl::StrCat("the deadline passed while ", doing,
                                  "; ask for a longer timeout if the model needs it"));
  }
  return absl::OkStatus();
}

void Poll(absl::Span<pollfd> polled, const Patience& patience, absl::Duration at_most) {
  std::vector<pollfd> all(polled.begin(), polled.end());
  if (patience.cancellation != nullptr) all.push_back({patience.cancellation->fd(), POLLIN, 0});
  const absl::Duration timeout =
      std::max(absl::ZeroDuration(), std::min(at_most, patience.deadline - absl::Now()));
  const timespec limit = absl::ToTimespec(timeout);
  const bool forever = timeout == absl::InfiniteDuration();
  const int ready = ::ppoll(all.data(), all.size(), forever ? nullptr : &limit, nullptr);
  for (size_t i = 0; i < polled.size(); ++i) polled[i].revents = ready > 0 ? all[i].revents : 0;
}

}  // namespace lowerd::pool
