#include "src/pool/job_run.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include <sys/wait.h>

#include "src/base/error.h"
#include "src/pool/event.h"
#include "src/pool/job_child.h"

namespace lowerd::pool {
namespace {

// Of a child's output, the end is kept for the message about a crash.
constexpr size_t kLogBytes = 2048;
// Progress that says nothing new in kind is passed on at most that often.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(20);
// Time a zygote has to tell how a child ended.
constexpr absl::Duration kFateTimeout = absl::Seconds(2);
// Of an error that a child reports.
constexpr size_t kMaxMessageBytes = size_t{16} << 10;
constexpr size_t kMaxPayloadBytes = size_t{64} << 10;

// An error as a child sent it, cut down to a size that can be stored and sent on.
absl::Status Bounded(const absl::Status& status) {
  absl::Status out(status.code(), status.message().substr(0, kMaxMessageBytes));
  size_t size = 0;
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    size += type.size() + payload.size();
    if (size <= kMaxPayloadBytes) out.SetPayload(type, payload);
  });
  return WithReason(out);
}

// The answer to a claim of names, which may come after its job is gone. Thread-safe.
class Grant {
 public:
  // Readable once there is an answer.
  int fd() const { return known_.fd(); }
  void Set(absl::StatusOr<internal::NamesGranted> names) {
    {
      absl::MutexLock lock(&mutex_);
      names_ = std::move(names);
    }
    known_.Notify();
  }
  // Once, after the notification.
  absl::StatusOr<internal::NamesGranted> Take() {
    absl::MutexLock lock(&mutex_);
    return std::move(names_);
  }

 private:
  absl::Mutex mutex_;
  absl::StatusOr<internal::NamesGranted> names_ ABSL_GUARDED_BY(mutex_) =
      absl::UnknownError("not known yet");
  Event known_;
};

class JobRun {
 public:
  JobRun(Child child, const WorkerPool::Job& job, const Patience& patience, ThreadPool& claimers)
      : child_(std::move(child)), job_(job), patience_(patience), claimers_(claimers) {}

  Outcome Run(const internal::ToChild& message) {
    std::vector<int> fds;
    for (const WorkerPool::File& file : job_.files) fds.push_back(file.fd);
    if (absl::Status status = child_.channel.Queue(message, fds); !status.ok()) {
      GiveUp(std::move(status));
    }
    while (!outcome_.has_value()) Step();
    EndChild();
    if (outcome_->end == Outcome::End::kCrashed && !nonsense_) ExplainEnd();
    return *std::move(outcome_);
  }

 private:
  void Step() {
    absl::Status patient = patience_.Check(Doing());
    if (!patient.ok()) return GiveUp(std::move(patient));
    const short channel_events = child_.channel.has_output() ? POLLIN | POLLOUT : POLLIN;
    pollfd polled[] = {{channel_open_ ? child_.channel.fd() : -1, channel_events, 0},
                       {child_.pidfd.get(), POLLIN, 0},
                       {child_.log.get(), POLLIN, 0},
                       {grant_ != nullptr ? grant_->fd() : -1, POLLIN, 0}};
    Poll(absl::MakeSpan(polled), patience_);
    if (polled[2].revents != 0) ReadLog();
    if (polled[3].revents != 0) AnswerClaim();
    // What it had sent before it ended still counts.
    if (!outcome_.has_value() && channel_open_ &&
        (polled[0].revents != 0 || polled[1].revents != 0)) {
      Talk();
    }
    if (!outcome_.has_value() && polled[1].revents != 0) End(Outcome::End::kCrashed, {});
  }

  void Talk() {
    if (!child_.channel.Flush().ok()) channel_open_ = false;
    if (!child_.channel.Fill(/*take_fds=*/false).ok()) channel_open_ = false;
    internal::FromChild message;
    while (!outcome_.has_value()) {
      const absl::StatusOr<bool> complete = child_.channel.Next(message);
      if (!complete.ok()) return Nonsense(complete.status().message());
      if (!*complete) return;
      Handle(message);
    }
  }

  void Handle(internal::FromChild& message) {
    switch (message.kind_case()) {
      case internal::FromChild::kProgress:
        return HandleProgress(message.progress());
      case internal::FromChild::kClaimNames:
        return HandleClaim(message.claim_names());
      case internal::FromChild::kDone:
        End(Outcome::End::kAnswered, absl::OkStatus());
        outcome_->done = std::move(*message.mutable_done());
        return;
      case internal::FromChild::kFailed: {
        const absl::Status status = ParseStatus(message.failed().SerializeAsString());
        if (status.ok()) return Nonsense("an error without a code");
        return End(Outcome::End::kAnswered, Bounded(status));
      }
      case internal::FromChild::KIND_NOT_SET:
        return Nonsense("an empty message");
    }
  }

  // States only go forward, and a flood of progress costs nothing beyond its parsing.
  void HandleProgress(const internal::Progress& progress) {
    const absl::Time now = absl::Now();
    if (progress.state() < progress_.state()) return;
    if (progress.state() == progress_.state() && now - progress_time_ < kProgressInterval) return;
    progress_ = progress;
    progress_time_ = now;
    if (job_.on_progress) job_.on_progress(progress);
  }

  void HandleClaim(const internal::ClaimNames& claims) {
    if (std::exchange(has_claimed_, true)) return Nonsense("a second claim of names");
    if (!job_.claim_names) return Nonsense("a claim of names that the job cannot have");
    // The registry may be slow or away, and patience may run out meanwhile.
    grant_ = std::make_shared<Grant>();
    claimers_.Schedule([claim_names = job_.claim_names, claims, grant = grant_] {
      grant->Set(claim_names(claims));
    });
  }

  void AnswerClaim() {
    absl::StatusOr<internal::NamesGranted> granted = std::exchange(grant_, nullptr)->Take();
    if (!granted.ok()) return GiveUp(granted.status());
    internal::ToChild answer;
    *answer.mutable_names_granted() = *std::move(granted);
    if (absl::Status status = child_.channel.Queue(answer); !status.ok()) {
      return GiveUp(std::move(status));
    }
    if (!child_.channel.Flush().ok()) channel_open_ = false;
  }

  void ReadLog() {
    char buffer[4096];
    const ssize_t n = ::read(child_.log.get(), buffer, sizeof buffer);
    if (n == 0) child_.log.Reset();
    if (n <= 0) return;
    log_.append(buffer, static_cast<size_t>(n));
    if (log_.size() > kLogBytes) log_.erase(0, log_.size() - kLogBytes);
  }

  void EndChild() {
    child_.Kill();
    pollfd polled = {child_.pidfd.get(), POLLIN, 0};
    while ((polled.revents & POLLIN) == 0) ::poll(&polled, 1, -1);
  }

  // Finds out why the child ended without an answer.
  void ExplainEnd() {
    pollfd polled[] = {{child_.fate->fd(), POLLIN, 0}};
    Poll(absl::MakeSpan(polled), Patience{absl::Now() + kFateTimeout, nullptr});
    const std::optional<internal::FromZygote::Exited> exited = child_.fate->exited();
    if (!exited.has_value()) {
      outcome_->end = polled[0].revents == 0 ? Outcome::End::kZygoteSilent : Outcome::End::kLost;
      return;
    }
    // At most what the pipe holds.
    while (child_.log.valid()) {
      const size_t before = log_.size();
      ReadLog();
      if (log_.size() == before && log_.size() < kLogBytes) break;
      if (++log_reads_ > 64) break;
    }
    const int wait_status = exited->wait_status();
    if (WIFEXITED(wait_status)) {
      outcome_->status = Crash(absl::StrCat("exit code ", WEXITSTATUS(wait_status)));
      return;
    }
    const int signal = WTERMSIG(wait_status);
    if (signal == SIGXCPU) {
      Limit(Reason::kDeadlineExceeded, "the job used up its CPU time");
    } else if (signal == SIGXFSZ) {
      Limit(Reason::kLimitExceeded, "the job wrote more than an artifact may hold");
    } else if (signal == SIGABRT && absl::StrContains(log_, "std::bad_alloc")) {
      Limit(Reason::kOutOfMemory, "the job ran out of memory");
    } else if (signal == SIGKILL) {
      // Nobody but the kernel (or an operator) does that; the pool decides what it means.
      outcome_->status = MakeError(
          Reason::kOutOfMemory,
          absl::StrCat("the job's process was killed while ", Doing(),
                       ", most likely by the kernel because memory ran out on this machine"));
    } else {
      outcome_->status = Crash(DescribeSignal(signal));
    }
  }

  absl::Status Crash(absl::string_view end) {
    std::string output = absl::StrReplaceAll(absl::StripAsciiWhitespace(log_), {{"\n", " | "}});
    return MakeError(Reason::kWorkerCrashed,
                     absl::StrCat("the job's process ended by ", end, " while ", Doing(),
                                  output.empty() ? "" : "; its last output: ", output),
                     {{"end", std::string(end)}, {"phase", Phase()}});
  }

  void Limit(Reason reason, absl::string_view message) {
    outcome_->end = Outcome::End::kLimited;
    outcome_->status = MakeError(reason, absl::StrCat(message, " while ", Doing()));
  }

  void Nonsense(absl::string_view what) {
    nonsense_ = true;
    End(Outcome::End::kCrashed,
        MakeError(Reason::kWorkerCrashed,
                  absl::StrCat("the job's process broke the worker protocol while ", Doing(),
                               ": it sent ", what),
                  {{"end", "protocol"}, {"phase", Phase()}}));
  }

  void GiveUp(absl::Status status) { End(Outcome::End::kGaveUp, std::move(status)); }

  void End(Outcome::End end, absl::Status status) {
    outcome_.emplace();
    outcome_->end = end;
    outcome_->status = std::move(status);
  }

  std::string Phase() const {
    return v1::LowerModelMetadata::State_Name(
        std::max(progress_.state(), v1::LowerModelMetadata::LOADING));
  }
  std::string Doing() const { return absl::AsciiStrToLower(Phase()); }

  Child child_;
  const WorkerPool::Job& job_;
  const Patience& patience_;
  ThreadPool& claimers_;
  bool channel_open_ = true;
  bool has_claimed_ = false;
  // Set while a claim waits for its answer.
  std::shared_ptr<Grant> grant_;
  // The child did not end by itself: it broke the protocol.
  bool nonsense_ = false;
  internal::Progress progress_;
  absl::Time progress_time_ = absl::InfinitePast();
  std::string log_;
  int log_reads_ = 0;
  std::optional<Outcome> outcome_;
};

}  // namespace

Outcome RunOnChild(Child child, const internal::ToChild& message, const WorkerPool::Job& job,
                   const Patience& patience, ThreadPool& claimers) {
  return JobRun(std::move(child), job, patience, claimers).Run(message);
}

}  // namespace lowerd::pool
