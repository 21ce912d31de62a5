#include "src/pool/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <unistd.h>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "src/base/error.h"
#include "src/base/thread_pool.h"
#include "src/pool/admission.h"
#include "src/pool/crash_history.h"
#include "src/pool/fleet.h"
#include "src/pool/job_run.h"
#include "src/pool/wait.h"

namespace lowerd::pool {
namespace {

// What a job is expected to need, from the bytes it reads: the model's weights, the copies in what
// is lowered and written, and room for everything else.
constexpr int64_t kMemoryPerInputByte = 3;
constexpr int64_t kMemoryPerJob = int64_t{64} << 20;
// No artifact is larger than that, from the bytes that the job reads.
constexpr int64_t kArtifactPerInputByte = 8;
constexpr int64_t kArtifactAllowance = int64_t{1} << 30;
// The kernel ends a child that outlives its deadline for any reason; the pool does it first.
constexpr absl::Duration kCpuAllowance = absl::Seconds(5);
// A job whose zygotes keep dying under it may be why.
constexpr int kMaxLosses = 5;

class WorkerPoolImpl final : public WorkerPool {
 public:
  WorkerPoolImpl(Options options, std::unique_ptr<Fleet> fleet)
      : options_(std::move(options)),
        fleet_(std::move(fleet)),
        memory_budget_(options_.memory_budget_bytes > 0 ? options_.memory_budget_bytes
                                                        : DetectMemoryBudget()),
        memory_limit_(options_.memory_limit_bytes > 0
                          ? std::min(options_.memory_limit_bytes, memory_budget_)
                          : memory_budget_),
        admission_(options_.workers, memory_budget_),
        crash_history_(options_.crash_quarantine),
        claimers_(options_.workers) {}

  ~WorkerPoolImpl() override { Shutdown(); }

  const internal::FromZygote::Ready& toolchain() const override { return fleet_->toolchain(); }

  absl::StatusOr<internal::Done> Run(const Job& job) override {
    absl::StatusOr<internal::Done> done = RunTries(job);
    if (HasReason(done.status(), Reason::kDeadlineExceeded)) {
      deadline_exceeded_.fetch_add(1, std::memory_order_relaxed);
    }
    return done;
  }

  Stats GetStats() const override {
    Stats stats;
    stats.workers = options_.workers;
    stats.busy = admission_.busy();
    stats.ready = fleet_->ready();
    stats.jobs = jobs_.load(std::memory_order_relaxed);
    stats.crashes = crashes_.load(std::memory_order_relaxed);
    stats.out_of_memory = out_of_memory_.load(std::memory_order_relaxed);
    stats.deadline_exceeded = deadline_exceeded_.load(std::memory_order_relaxed);
    stats.zygote_restarts = fleet_->restarts();
    return stats;
  }

  absl::Status Health() const override { return fleet_->Health(); }

  void Shutdown() override {
    shut_down_.store(true);
    admission_.Close();
    fleet_->Stop();
  }

 private:
  absl::StatusOr<internal::Done> RunTries(const Job& job) {
    const Patience patience{job.deadline, job.cancellation};
    const std::string& model = job.request.model().hash();
    LOWERD_RETURN_IF_ERROR(crash_history_.Check(model, absl::Now()));
    LOWERD_ASSIGN_OR_RETURN(const int64_t input_bytes, InputBytes(job));
    LOWERD_ASSIGN_OR_RETURN(
        const Admission::Ticket ticket,
        admission_.Enter(kMemoryPerInputByte * input_bytes + kMemoryPerJob, patience));
    jobs_.fetch_add(1, std::memory_order_relaxed);

    int crashes = 0;
    int losses = 0;
    while (true) {
      LOWERD_ASSIGN_OR_RETURN(Child child, fleet_->Take(patience));
      const int64_t generation = child.generation;
      Outcome outcome = RunOnChild(std::move(child), Message(job, input_bytes), job, patience, claimers_);
      switch (outcome.end) {
        case Outcome::End::kAnswered:
          if (!outcome.status.ok()) {
            CountMemory(outcome.status);
            return WithLimit(std::move(outcome.status));
          }
          crash_history_.Forgive(model);
          return std::move(outcome.done);
        case Outcome::End::kGaveUp:
          return outcome.status;
        case Outcome::End::kLimited:
          CountMemory(outcome.status);
          return WithLimit(std::move(outcome.status));
        case Outcome::End::kCrashed:
          if (!CountMemory(outcome.status)) crashes_.fetch_add(1, std::memory_order_relaxed);
          if (!model.empty() && HasReason(outcome.status, Reason::kWorkerCrashed)) {
            crash_history_.AddCrash(model, std::string(outcome.status.message()), absl::Now());
          }
          if (++crashes >= options_.max_attempts) return Final(std::move(outcome.status), crashes);
          break;
        case Outcome::End::kZygoteSilent:
          fleet_->ReplaceZygote(generation);
          [[fallthrough]];
        case Outcome::End::kLost:
          if (shut_down_.load()) {
            return MakeError(Reason::kServerUnavailable, "the server is stopping");
          }
          if (++losses >= kMaxLosses) {
            return MakeError(Reason::kWorkerCrashed,
                             absl::StrCat("the worker process died ", losses,
                                          " times while this job ran; the log of lowerd says how"));
          }
          break;
      }
      LOWERD_RETURN_IF_ERROR(EmptyArtifacts(job));
    }
  }

  static absl::StatusOr<int64_t> InputBytes(const Job& job) {
    int64_t total = 0;
    for (const File& file : job.files) {
      if (file.role == internal::Job::File::ARTIFACT) continue;
      LOWERD_ASSIGN_OR_RETURN(const int64_t size, FileSize(file.fd));
      total += size;
    }
    return total;
  }

  static absl::Status EmptyArtifacts(const Job& job) {
    for (const File& file : job.files) {
      if (file.role != internal::Job::File::ARTIFACT) continue;
      if (::ftruncate(file.fd, 0) != 0 || ::lseek(file.fd, 0, SEEK_SET) != 0) {
        return ErrnoError(errno, "emptying an artifact for another try");
      }
    }
    return absl::OkStatus();
  }

  internal::ToChild Message(const Job& job, int64_t input_bytes) const {
    internal::ToChild message;
    internal::Job& out = *message.mutable_job();
    out.set_kind(job.kind);
    *out.mutable_request() = job.request;
    for (const File& file : job.files) {
      internal::Job::File& added = *out.add_files();
      added.set_role(file.role);
      added.set_key(file.key);
    }
    // Address space counts the mapped inputs, which are not the job's memory.
    out.set_memory_limit_bytes(memory_limit_ + input_bytes);
    out.set_file_limit_bytes(kArtifactPerInputByte * input_bytes + kArtifactAllowance);
    if (job.deadline != absl::InfiniteFuture()) {
      const absl::Duration left = job.deadline - absl::Now() + kCpuAllowance;
      out.set_cpu_limit_seconds(std::max<int64_t>(1, absl::ToInt64Seconds(left)) *
                                std::max<int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN)));
    }
    return message;
  }

  // Counts a try that ended for want of memory; whether this is one.
  bool CountMemory(const absl::Status& status) {
    if (!HasReason(status, Reason::kOutOfMemory)) return false;
    out_of_memory_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  // Tells the limit with an OUT_OF_MEMORY, which the child does not know.
  absl::Status WithLimit(absl::Status status) const {
    if (!HasReason(status, Reason::kOutOfMemory)) return status;
    return MakeError(Reason::kOutOfMemory,
                     absl::StrCat(status.message(), "; the memory limit of one job is ",
                                  memory_limit_ >> 20, " MiB (--job-memory)"),
                     {{"limit_bytes", absl::StrCat(memory_limit_)}});
  }

  absl::Status Final(absl::Status status, int crashes) const {
    if (HasReason(status, Reason::kOutOfMemory)) return WithLimit(std::move(status));
    if (crashes == 1) return status;
    absl::Status out(status.code(), absl::StrCat(status.message(), " (tried ", crashes, " times)"));
    status.ForEachPayload([&out](absl::string_view type, const absl::Cord& payload) {
      out.SetPayload(type, payload);
    });
    return out;
  }

  const Options options_;
  const std::unique_ptr<Fleet> fleet_;
  const int64_t memory_budget_;
  // Also without a limit of the operator's, an endless allocation must meet its own limit before
  // it meets the machine's.
  const int64_t memory_limit_;
  Admission admission_;
  CrashHistory crash_history_;
  std::atomic<bool> shut_down_ = false;
  std::atomic<int64_t> jobs_ = 0;
  std::atomic<int64_t> crashes_ = 0;
  std::atomic<int64_t> out_of_memory_ = 0;
  std::atomic<int64_t> deadline_exceeded_ = 0;
  // Claim names, at most one call for each running job and those of jobs that were given up.
  ThreadPool claimers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Create(Options options) {
  if (options.workers < 1) return FieldError("workers", "must be at least 1");
  Fleet::Options fleet_options;
  fleet_options.program = options.worker_program;
  for (const std::string& library : options.backend_libraries) {
    fleet_options.arguments.push_back(absl::StrCat("--backend-lib=", library));
  }
  for (const std::string& library : options.operator_libraries) {
    fleet_options.arguments.push_back(absl::StrCat("--op-lib=", library));
  }
  // While all workers run a job, the next child is ready as well.
  fleet_options.spare = options.workers + 1;
  fleet_options.require_sandbox = options.require_sandbox;
  fleet_options.start_timeout = options.start_timeout;
  fleet_options.answer_timeout = options.answer_timeout;
  LOWERD_ASSIGN_OR_RETURN(std::unique_ptr<Fleet> fleet, Fleet::Start(std::move(fleet_options)));
  return std::make_unique<WorkerPoolImpl>(std::move(options), std::move(fleet));
}

}  // namespace lowerd::pool
