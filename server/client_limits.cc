#include "server/client_limits.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "src/base/error.h"

namespace lowerd::server {
namespace {

constexpr absl::Duration kRetryDelay = absl::Seconds(1);

}  // namespace

absl::StatusOr<ClientLimits::Place> ClientLimits::Enter(const std::string& client) {
  absl::MutexLock lock(&mutex_);
  const auto at = streams_.try_emplace(client, 0).first;
  if (at->second >= per_client_) {
    absl::Status full = MakeError(
        Reason::kQueueFull, absl::StrCat("this client has ", at->second,
                                         " uploads and downloads under way already; try again when "
                                         "some have ended (lowerd --max-streams-per-client)"));
    SetRetryDelay(full, kRetryDelay);
    return full;
  }
  ++at->second;
  return Place(*this, at);
}

void ClientLimits::Leave(Place::Counts::iterator at) {
  absl::MutexLock lock(&mutex_);
  if (--at->second == 0) streams_.erase(at);
}

}  // namespace lowerd::server
