#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "lowerd/internal/worker.pb.h"
#include "src/base/cancellation.h"
#include "src/base/fd.h"

namespace lowerd::pool {

// Worker processes: one warm zygote and one forked, sandboxed child for each job. Thread-safe.
class WorkerPool {
 public:
  struct Options {
    // Path of lowerd-worker.
    std::string worker_program;
    // Libraries that register backends, and libraries of custom operators.
    std::vector<std::string> backend_libraries;
    std::vector<std::string> operator_libraries;
    // Jobs at once.
    int workers = 1;
    // Memory of a child beyond the zygote's, in bytes; 0 is the memory budget below, and no limit
    // is higher.
    int64_t memory_limit_bytes = 0;
    // Refuse to start where a layer of the sandbox cannot be had.
    bool require_sandbox = true;
    // Times a job is tried when its child dies of a signal that is not ours.
    int max_attempts = 2;
    // A model that has crashed two children is refused without a job for that long after its last
    // crash. Kept in memory.
    absl::Duration crash_quarantine = absl::Minutes(10);
    // What the jobs that run may need in all, in bytes, by an estimate of three times their inputs
    // and 64 MiB each; others wait. 0: four fifths of the machine's (or memory cgroup's) memory.
    int64_t memory_budget_bytes = 0;
    // How long the zygote may take until it is ready.
    absl::Duration start_timeout = absl::Seconds(60);
    // How long the zygote may take to fork, until it is held to be stuck and replaced.
    absl::Duration answer_timeout = absl::Seconds(5);
  };

  // Starts the zygote by exec and waits until it is ready. Its error names what is wrong (a library
  // that does not load, a missing sandbox layer).
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Create(Options options);
  virtual ~WorkerPool() = default;

  // What the zygote has loaded; the same for every zygote of this pool.
  virtual const internal::FromZygote::Ready& toolchain() const = 0;

  struct File {
    internal::Job::File::Role role;
    std::string key;
    // Borrowed for the duration of Run.
    int fd;
  };
  struct Job {
    internal::Job::Kind kind = internal::Job::LOWER;
    lowerd::v1::LowerModelRequest request;
    std::vector<File> files;
    absl::Time deadline = absl::InfiniteFuture();
    // May be null.
    const Cancellation* cancellation = nullptr;
    // Called on the thread of Run.
    std::function<void(const internal::Progress&)> on_progress;
    // Called on a thread of the pool. A job that is cancelled or late does not wait for the call to
    // end, so that it must own what it uses, or use what outlives the pool.
    std::function<absl::StatusOr<internal::NamesGranted>(const internal::ClaimNames&)> claim_names;
  };

  // Waits for a free worker, runs the job in a fresh child and blocks until the child is gone, so
  // that nobody writes to the files any more. A crash is tried again (files of role ARTIFACT are
  // truncated first). Errors: the child's own; WORKER_CRASHED with signal, phase and last log
  // lines; OUT_OF_MEMORY; DEADLINE_EXCEEDED; OPERATION_CANCELLED (within 200 ms);
  // SERVER_UNAVAILABLE while shutting down.
  virtual absl::StatusOr<internal::Done> Run(const Job& job) = 0;

  struct Stats {
    // Jobs at once, and those of them that run.
    int workers = 0;
    int busy = 0;
    // Children forked ahead.
    int ready = 0;
    int64_t jobs = 0;
    // Tries of jobs that ended by a crash of the child and for want of memory (its limit, or the
    // kernel's killer), and jobs that did not end in their time.
    int64_t crashes = 0;
    int64_t out_of_memory = 0;
    int64_t deadline_exceeded = 0;
    int64_t zygote_restarts = 0;
  };
  virtual Stats GetStats() const = 0;

  // OK while jobs can be run; else why not (zygotes do not start any more). Never blocks on I/O.
  virtual absl::Status Health() const = 0;

  // Kills what runs; later calls of Run fail. Idempotent.
  virtual void Shutdown() = 0;
};

}  // namespace lowerd::pool
