#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "lowerd/internal/worker.pb.h"
#include "src/base/thread_pool.h"
#include "src/pool/fleet.h"
#include "src/pool/wait.h"
#include "src/pool/worker_pool.h"

namespace lowerd::pool {

// How one try of a job ended.
struct Outcome {
  enum class End {
    // The child answered with a result (`done`) or with an error of its own (`status`).
    kAnswered,
    // Patience ran out (`status`), or lowerd's own part of the job failed.
    kGaveUp,
    // The child ended without an answer, or sent nonsense: `status` describes it.
    kCrashed,
    // A limit of the job ended it (`status`); another try would end the same way.
    kLimited,
    // The zygote died and took the child along; the job is not to blame.
    kLost,
    // The child is gone but the zygote does not tell how: it is stuck. As kLost.
    kZygoteSilent,
  };
  End end = End::kLost;
  absl::Status status;
  internal::Done done;
};

// Runs the job on `child`; `message` is the job as the child gets it. Nothing the child sends is
// trusted: frames, log and progress are bounded, and a breach of the protocol is a crash. Reports
// progress on this thread; claims names on one of `claimers`, whose end a job that is given up does
// not await. The child is gone when this returns.
Outcome RunOnChild(Child child, const internal::ToChild& message, const WorkerPool::Job& job,
                   const Patience& patience, ThreadPool& claimers);

}  // namespace lowerd::pool
