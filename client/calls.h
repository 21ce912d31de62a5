#pragma once

#include <memory>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/client_options.h"

namespace lowerd::client {

// What all calls of one client share: deadlines, the wish to stop, waiting between tries, and
// errors that say what to do. Thread-safe.
class Calls {
 public:
  Calls(const ClientOptions& options, std::shared_ptr<grpc::Channel> channel)
      : options_(options), channel_(std::move(channel)) {}

  const ClientOptions& options() const { return options_; }

  // Ends stoppable calls in flight and waits, and refuses later ones. Idempotent.
  void Stop();
  bool stopped() const;
  // The error of what Stop() ended.
  static absl::Status StoppedError();

  // Waits, not longer than until a connection that was broken stands again; false at once when
  // stopped.
  bool Wait(absl::Duration duration);

  // From gRPC's status. One that gRPC itself made (no details) gets a reason and, where the server
  // cannot be reached, what to do about it.
  absl::Status FromGrpc(const grpc::Status& status) const;

 private:
  friend class CallContext;

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mutex_);
};

enum class Stoppable { kYes, kNo };

// The context of one try of one call, with its deadline. Must not outlive its `calls`.
class CallContext {
 public:
  CallContext(Calls& calls, absl::Duration timeout, Stoppable stoppable = Stoppable::kYes);
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  grpc::ClientContext* get() { return &context_; }

 private:
  Calls& calls_;
  grpc::ClientContext context_;
};

// Decides about further tries of one call, with growing waits between them. Thread-compatible.
class Backoff {
 public:
  explicit Backoff(Calls& calls);

  // After a try that ended with `status`: waits and returns true if another try makes sense, that
  // is UNAVAILABLE or a full queue, while tries are left. RetryInfo sets the least wait.
  bool TryAgain(const absl::Status& status);
  // After progress: counts from the start again.
  void Reset();

 private:
  Calls& calls_;
  int tries_left_;
  absl::Duration delay_;
  std::minstd_rand random_;
};

// Calls `call` (grpc::Status(grpc::ClientContext*, Response*)), which must be safe to repeat, until
// it succeeds or further tries make no sense.
template <typename Response, typename Call>
absl::StatusOr<Response> RetriedCall(Calls& calls, const Call& call,
                                     Stoppable stoppable = Stoppable::kYes) {
  Backoff backoff(calls);
  while (true) {
    if (stoppable == Stoppable::kYes && calls.stopped()) return Calls::StoppedError();
    Response response;
    CallContext context(calls, calls.options().call_timeout, stoppable);
    absl::Status status = calls.FromGrpc(call(context.get(), &response));
    if (status.ok()) return response;
    if (!backoff.TryAgain(status)) return status;
  }
}

}  // namespace lowerd::client
