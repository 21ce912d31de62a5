#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "lowerd/internal/worker.pb.h"
#include "src/base/fd.h"
#include "src/pool/channel.h"
#include "src/pool/event.h"
#include "src/pool/wait.h"
#include "src/pool/worker_process.h"

namespace lowerd::pool {

// What the zygote tells about the end of one of its children. Thread-safe.
class Fate {
 public:
  // Readable once the fate is known.
  int fd() const { return known_.fd(); }
  // Empty while unknown, and for ever if the zygote died first.
  std::optional<internal::FromZygote::Exited> exited() const;
  void Set(std::optional<internal::FromZygote::Exited> exited);

 private:
  mutable absl::Mutex mutex_;
  std::optional<internal::FromZygote::Exited> exited_ ABSL_GUARDED_BY(mutex_);
  Event known_;
};

// A forked child that waits for its job. Killed when this is destroyed.
struct Child {
  Child() = default;
  Child(Child&&) noexcept = default;
  Child& operator=(Child&&) noexcept = default;
  ~Child() { Kill(); }

  // By pidfd, so that never another process is hit. Idempotent.
  void Kill() const;

  int pid = 0;
  Channel channel;
  // Read end of its standard output and error; does not block.
  Fd log;
  // Readable when the child has ended and its descriptors are closed.
  Fd pidfd;
  std::shared_ptr<Fate> fate;
  // Which zygote it is of.
  int64_t generation = 0;
};

// Keeps one zygote alive and some of its children forked ahead of time. A zygote that dies or does
// not answer is replaced; its children die with it. Thread-safe.
class Fleet {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;
    // Children kept ready.
    int spare = 1;
    bool require_sandbox = true;
    absl::Duration start_timeout;
    // Time a zygote has to answer a fork, before it is taken for stuck.
    absl::Duration answer_timeout;
  };

  // Waits for the first zygote to be ready.
  static absl::StatusOr<std::unique_ptr<Fleet>> Start(Options options);
  // Ends the zygote and with it all children.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  const internal::FromZygote::Ready& toolchain() const { return toolchain_; }

  // The next ready child; waits for one. Errors: Patience's; SERVER_UNAVAILABLE while stopping or
  // when zygotes cannot be started any more (it says why).
  absl::StatusOr<Child> Take(const Patience& patience);

  // Reports that the zygote of this generation does not do its work.
  void ReplaceZygote(int64_t generation);
  int64_t restarts() const;
  // Children that wait for a job.
  int ready() const;
  // OK unless zygotes cannot be started any more; the same error as Take's.
  absl::Status Health() const;

  // Ends everything; Take fails from now on. Idempotent.
  void Stop();

 private:
  struct PendingFork {
    Child child;
    // The child's ends; ours until the zygote has forked.
    Channel child_channel;
    Fd child_log;
    absl::Time asked;
  };
  struct Waiter {
    std::optional<Child> child;
    Event event;
  };

  explicit Fleet(Options options) : options_(std::move(options)) {}

  // The manager thread: everything about the process happens here. It is also the thread whose end
  // would make the kernel end the zygote.
  void Manage();
  // Runs one zygote from start to end. Returns why it ended; OK when stopping.
  absl::Status RunZygote();
  absl::Status AwaitReady(WorkerProcess& process);
  absl::Status Accept(internal::FromZygote::Ready ready);
  absl::Status Serve(WorkerProcess& process);
  absl::Status AskForForks(WorkerProcess& process);
  absl::Status HandleMessage(WorkerProcess& process, internal::FromZygote message);
  // Asks for what should change the manager's mind.
  bool stopping() const;
  absl::Status HealthLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int ForksWanted() const;
  void Offer(Child child);
  void WakeWaiters();

  const Options options_;
  internal::FromZygote::Ready toolchain_;
  Event wake_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Set by the first zygote: ready, or why not.
  std::optional<absl::Status> started_ ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  // The zygote of this generation is to be replaced.
  int64_t condemned_ ABSL_GUARDED_BY(mutex_) = 0;
  int failed_starts_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::deque<Child> ready_ ABSL_GUARDED_BY(mutex_);
  // Borrowed from the callers that wait.
  std::deque<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);

  // Only for the manager thread.
  uint64_t last_child_id_ = 0;
  std::map<uint64_t, PendingFork> pending_;
  std::map<uint64_t, std::shared_ptr<Fate>> fates_;
  absl::Time no_fork_before_ = absl::InfinitePast();

  std::thread manager_;
};

}  // namespace lowerd::pool
