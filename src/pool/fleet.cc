#include "src/pool/fleet.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include <sys/syscall.h>

#include "src/base/error.h"
#include "src/pool/job_child.h"

namespace lowerd::pool {
namespace {

// After that many starts that failed in a row, callers get the error instead of waiting on.
constexpr int kPatienceForStarts = 3;
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(5);
// Before a fork that failed (too many processes, no memory) is tried again.
constexpr absl::Duration kForkPause = absl::Milliseconds(100);

absl::Status Unavailable(absl::string_view message) {
  return MakeError(Reason::kServerUnavailable, message);
}

}  // namespace

std::optional<internal::FromZygote::Exited> Fate::exited() const {
  absl::MutexLock lock(&mutex_);
  return exited_;
}

void Fate::Set(std::optional<internal::FromZygote::Exited> exited) {
  absl::MutexLock lock(&mutex_);
  exited_ = std::move(exited);
  known_.Notify();
}

void Child::Kill() const {
  if (pidfd.valid()) ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
}

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Start(Options options) {
  std::unique_ptr<Fleet> fleet(new Fleet(std::move(options)));
  fleet->manager_ = std::thread([&fleet = *fleet] { fleet.Manage(); });
  absl::Status started;
  {
    absl::MutexLock lock(&fleet->mutex_);
    const auto is_started = [&fleet = *fleet]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return fleet.started_.has_value();
    };
    fleet->mutex_.Await(absl::Condition(&is_started));
    started = *fleet->started_;
  }
  if (!started.ok()) return started;
  return fleet;
}

Fleet::~Fleet() {
  Stop();
  manager_.join();
}

void Fleet::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  wake_.Notify();
}

bool Fleet::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

int64_t Fleet::restarts() const {
  absl::MutexLock lock(&mutex_);
  return std::max<int64_t>(0, generation_ - 1);
}

int Fleet::ready() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(ready_.size());
}

absl::Status Fleet::Health() const {
  absl::MutexLock lock(&mutex_);
  return HealthLocked();
}

absl::Status Fleet::HealthLocked() const {
  if (stopping_) return Unavailable("the server is stopping");
  if (failed_starts_ < kPatienceForStarts) return absl::OkStatus();
  return Unavailable(absl::StrCat("the worker process does not start: ", last_error_.message()));
}

void Fleet::ReplaceZygote(int64_t generation) {
  absl::MutexLock lock(&mutex_);
  condemned_ = std::max(condemned_, generation);
  wake_.Notify();
}

absl::StatusOr<Child> Fleet::Take(const Patience& patience) {
  Waiter waiter;
  {
    absl::MutexLock lock(&mutex_);
    if (!ready_.empty() && !stopping_) {
      Child child = std::move(ready_.front());
      ready_.pop_front();
      wake_.Notify();
      return child;
    }
    waiters_.push_back(&waiter);
    wake_.Notify();
  }
  while (true) {
    absl::Status patient = patience.Check("waiting for a worker process");
    {
      absl::MutexLock lock(&mutex_);
      if (waiter.child.has_value()) {
        if (patient.ok()) return *std::move(waiter.child);
        return patient;
      }
      const absl::Status health = HealthLocked();
      if (!health.ok() && (stopping_ || patient.ok())) patient = health;
      if (!patient.ok()) {
        waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &waiter));
        return patient;
      }
    }
    pollfd polled[] = {{waiter.event.fd(), POLLIN, 0}};
    Poll(polled, patience);
    waiter.event.Clear();
  }
}

void Fleet::Manage() {
  absl::Duration pause = kFirstPause;
  while (!stopping()) {
    const absl::Time began = absl::Now();
    const absl::Status status = RunZygote();
    WakeWaiters();
    absl::MutexLock lock(&mutex_);
    // Callers of Start do not wait for a second try.
    if (!started_.has_value()) started_ = status;
    if (stopping_ || generation_ == 0) break;
    last_error_ = status;
    if (absl::Now() - began > kLongestPause) pause = kFirstPause;
    if (failed_starts_ == 0) continue;
    const auto is_stopping = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopping_; };
    mutex_.AwaitWithTimeout(absl::Condition(&is_stopping), pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  WakeWaiters();
}

absl::Status Fleet::RunZygote() {
  {
    absl::MutexLock lock(&mutex_);
    ++failed_starts_;
  }
  LOWERD_ASSIGN_OR_RETURN(WorkerProcess process,
                          WorkerProcess::Start(options_.program, options_.arguments));
  absl::Status status = AwaitReady(process);
  if (status.ok()) status = Serve(process);
  // Children end with their zygote; whoever runs a job on one learns that it is not to blame.
  std::deque<Child> idle;
  {
    absl::MutexLock lock(&mutex_);
    idle.swap(ready_);
  }
  pending_.clear();
  for (const auto& [id, fate] : fates_) fate->Set(std::nullopt);
  fates_.clear();
  return status;
}

absl::Status Fleet::AwaitReady(WorkerProcess& process) {
  const Patience patience{absl::Now() + options_.start_timeout, nullptr};
  while (!stopping()) {
    const absl::Status filled = process.control().Fill(/*take_fds=*/true);
    internal::FromZygote message;
    LOWERD_ASSIGN_OR_RETURN(const bool complete, process.control().Next(message));
    if (complete && message.has_ready()) return Accept(std::move(*message.mutable_ready()));
    if (complete && message.has_failed()) return ParseStatus(message.failed().SerializeAsString());
    if (!filled.ok()) {
      return Unavailable(
          absl::StrCat(options_.program, " ended before it was ready: ", process.WaitForEnd()));
    }
    if (!patience.Check("starting").ok()) {
      return Unavailable(absl::StrCat(options_.program, " was not ready within ",
                                      absl::FormatDuration(options_.start_timeout)));
    }
    pollfd polled[] = {{process.control().fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    Poll(polled, patience);
    if (polled[1].revents != 0) wake_.Clear();
  }
  return Unavailable("the server is stopping");
}

absl::Status Fleet::Accept(internal::FromZygote::Ready ready) {
  if (options_.require_sandbox && ready.sandbox_missing_size() > 0) {
    return Unavailable(absl::StrCat("jobs cannot be sandboxed fully on this host; missing are ",
                                    absl::StrJoin(ready.sandbox_missing(), ", "),
                                    "; --no-require-sandbox goes on without"));
  }
  absl::MutexLock lock(&mutex_);
  if (generation_ == 0) {
    toolchain_ = std::move(ready);
  } else if (ready.producer().SerializeAsString() != toolchain_.producer().SerializeAsString()) {
    // What is cached and what was promised to clients is of the libraries loaded first.
    return Unavailable("the worker's libraries have changed on disk; restart lowerd to use them");
  }
  ++generation_;
  failed_starts_ = 0;
  started_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::Status Fleet::Serve(WorkerProcess& process) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::OkStatus();
      if (condemned_ >= generation_) return Unavailable("the worker process did not answer");
    }
    LOWERD_RETURN_IF_ERROR(AskForForks(process));
    absl::Time wake_at = absl::InfiniteFuture();
    for (const auto& [id, fork] : pending_) {
      wake_at = std::min(wake_at, fork.asked + options_.answer_timeout);
    }
    if (wake_at <= absl::Now()) return Unavailable("the worker process did not answer");
    if (no_fork_before_ > absl::Now()) wake_at = std::min(wake_at, no_fork_before_);

    pollfd polled[] = {
        {process.control().fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}, {process.pidfd(), POLLIN, 0}};
    Poll(polled, Patience{wake_at, nullptr});
    if (polled[1].revents != 0) wake_.Clear();
    const absl::Status filled = process.control().Fill(/*take_fds=*/true);
    while (true) {
      internal::FromZygote message;
      LOWERD_ASSIGN_OR_RETURN(const bool complete, process.control().Next(message));
      if (!complete) break;
      LOWERD_RETURN_IF_ERROR(HandleMessage(process, std::move(message)));
    }
    if (!filled.ok() || polled[2].revents != 0) {
      return Unavailable(absl::StrCat("the worker process ended: ", process.WaitForEnd()));
    }
  }
}

int Fleet::ForksWanted() const {
  absl::MutexLock lock(&mutex_);
  return options_.spare + static_cast<int>(waiters_.size()) - static_cast<int>(ready_.size());
}

absl::Status Fleet::AskForForks(WorkerProcess& process) {
  if (absl::Now() < no_fork_before_) return absl::OkStatus();
  for (int wanted = ForksWanted() - static_cast<int>(pending_.size()); wanted > 0; --wanted) {
    LOWERD_ASSIGN_OR_RETURN(auto ends, Channel::Pair());
    int log[2];
    if (::pipe2(log, O_CLOEXEC) != 0) return ErrnoError(errno, "making a log pipe");
    PendingFork fork;
    fork.child.channel = std::move(ends.first);
    fork.child.log = Fd(log[0]);
    fork.child_channel = std::move(ends.second);
    fork.child_log = Fd(log[1]);
    fork.asked = absl::Now();
    ::fcntl(log[0], F_SETFL, O_NONBLOCK);

    internal::ToZygote message;
    message.mutable_fork()->set_child_id(++last_child_id_);
    LOWERD_RETURN_IF_ERROR(
        process.control().Queue(message, {fork.child_channel.fd(), fork.child_log.get()}));
    pending_.emplace(last_child_id_, std::move(fork));
    LOWERD_RETURN_IF_ERROR(process.control().Flush());
  }
  return absl::OkStatus();
}

absl::Status Fleet::HandleMessage(WorkerProcess& process, internal::FromZygote message) {
  if (message.has_forked()) {
    const auto found = pending_.find(message.forked().child_id());
    LOWERD_ASSIGN_OR_RETURN(std::vector<Fd> fds, process.control().TakeFds(1));
    if (found == pending_.end()) {
      return Unavailable("the worker process announced an unknown child");
    }
    Child child = std::move(found->second.child);
    pending_.erase(found);
    child.pid = message.forked().pid();
    child.pidfd = std::move(fds.front());
    child.fate = std::make_shared<Fate>();
    fates_.emplace(message.forked().child_id(), child.fate);
    Offer(std::move(child));
  } else if (message.has_exited()) {
    const uint64_t id = message.exited().child_id();
    if (message.exited().wait_status() == kForkFailed) {
      pending_.erase(id);
      no_fork_before_ = absl::Now() + kForkPause;
      return absl::OkStatus();
    }
    const auto fate = fates_.find(id);
    if (fate == fates_.end()) return absl::OkStatus();
    const std::shared_ptr<Fate> ended = std::move(fate->second);
    fates_.erase(fate);
    ended->Set(std::move(*message.mutable_exited()));
    // It may have ended while it waited for a job.
    absl::MutexLock lock(&mutex_);
    std::erase_if(ready_, [&ended](const Child& child) { return child.fate == ended; });
  } else if (message.has_failed()) {
    return ParseStatus(message.failed().SerializeAsString());
  }
  return absl::OkStatus();
}

void Fleet::Offer(Child child) {
  absl::MutexLock lock(&mutex_);
  child.generation = generation_;
  if (waiters_.empty()) {
    ready_.push_back(std::move(child));
    return;
  }
  Waiter& waiter = *waiters_.front();
  waiters_.pop_front();
  waiter.child = std::move(child);
  waiter.event.Notify();
}

void Fleet::WakeWaiters() {
  absl::MutexLock lock(&mutex_);
  for (Waiter* waiter : waiters_) waiter->event.Notify();
}

}  // namespace lowerd::pool
