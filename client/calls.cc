#include "client/calls.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

#include "client/channel.h"
#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::client {
namespace {

// How soon a wait notices that it should stop.
constexpr absl::Duration kStopCheck = absl::Milliseconds(50);

// gRPC wraps the cause: "failed to connect to all addresses; last error: UNKNOWN: cause".
absl::string_view InnermostCause(absl::string_view message) {
  constexpr absl::string_view kMarker = "last error: ";
  const size_t at = message.rfind(kMarker);
  return at == absl::string_view::npos ? message : message.substr(at + kMarker.size());
}

}  // namespace

void Calls::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (grpc::ClientContext* context : active_) context->TryCancel();
}

bool Calls::stopped() const {
  absl::MutexLock lock(&mutex_);
  return stopped_;
}

absl::Status Calls::StoppedError() {
  return MakeError(Reason::kOperationCancelled, "interrupted before the end");
}

bool Calls::Wait(absl::Duration duration) {
  const absl::Time end = absl::Now() + duration;
  // gRPC goes on connecting only while somebody waits for it.
  if (channel_->GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_READY) {
    while (absl::Now() < end) {
      if (stopped()) return false;
      const absl::Time slice = std::min(end, absl::Now() + kStopCheck);
      if (channel_->WaitForConnected(absl::ToChronoTime(slice))) return true;
    }
    return true;
  }
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stopped_), end - absl::Now());
}

absl::Status Calls::FromGrpc(const grpc::Status& grpc_status) const {
  absl::Status status = rpc::FromGrpc(grpc_status);
  if (status.ok() || !ReasonOf(status).empty()) return status;
  if (stopped() && absl::IsCancelled(status)) return StoppedError();
  if (absl::IsDeadlineExceeded(status)) {
    return MakeError(Reason::kDeadlineExceeded,
                     absl::StrCat("no answer from ", ServerAddress(options_.server),
                                  " in time; the server or the network is overloaded"));
  }
  if (!absl::IsUnavailable(status)) return status;
  const absl::string_view cause = InnermostCause(status.message());
  absl::string_view advice = "start lowerd or set --server / $LOWERD_SERVER";
  if (!IsPlaintext(options_)) {
    advice = "check the address, and that --tls-ca, --tls-cert and --tls-key fit the server";
  } else if (!absl::StrContains(cause, "refused") && !absl::StrContains(cause, "DNS")) {
    advice = "if the server speaks TLS, give its CA certificate with --tls-ca";
  }
  return MakeError(
      Reason::kServerUnavailable,
      absl::StrCat("cannot reach ", ServerAddress(options_.server), ": ", cause, "; ", advice));
}

CallContext::CallContext(Calls& calls, absl::Duration timeout, Stoppable stoppable)
    : calls_(calls) {
  context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (stoppable == Stoppable::kNo) return;
  absl::MutexLock lock(&calls_.mutex_);
  calls_.active_.insert(&context_);
  // gRPC remembers this and ends the call as soon as it starts.
  if (calls_.stopped_) context_.TryCancel();
}

CallContext::~CallContext() {
  absl::MutexLock lock(&calls_.mutex_);
  calls_.active_.erase(&context_);
}

Backoff::Backoff(Calls& calls) : calls_(calls), random_(std::random_device()()) { Reset(); }

void Backoff::Reset() {
  tries_left_ = calls_.options().retries;
  delay_ = calls_.options().initial_backoff;
}

bool Backoff::TryAgain(const absl::Status& status) {
  // Other errors with RetryInfo say when, not that it is worth waiting for.
  if (!absl::IsUnavailable(status) && !HasReason(status, Reason::kQueueFull)) return false;
  const absl::Duration asked = RetryDelayOf(status);
  if (tries_left_ <= 0) return false;
  --tries_left_;
  // Jitter keeps many clients of one restarted server apart.
  const absl::Duration wait = delay_ * std::uniform_real_distribution<>(0.7, 1.3)(random_);
  delay_ = std::min(delay_ * 2, calls_.options().maximum_backoff);
  return calls_.Wait(std::max(wait, std::min(asked, absl::Seconds(30))));
}

}  // namespace lowerd::client
