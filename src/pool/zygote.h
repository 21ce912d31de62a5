#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lowerd/internal/worker.pb.h"

namespace lowerd::pool {

// The program behind lowerd-worker: a fork server that knows nothing of what jobs do.

// Where the zygote finds its end of the control channel.
inline constexpr int kControlFd = 3;

// How a job speaks to lowerd, in the child. Not thread-safe.
class ChildHost {
 public:
  virtual ~ChildHost() = default;
  virtual void SendProgress(const internal::Progress& progress) = 0;
  // Asks lowerd and waits for the answer.
  virtual absl::StatusOr<internal::NamesGranted> ClaimNames(const internal::ClaimNames& claims) = 0;
};

struct ZygoteProgram {
  // Loads everything that jobs need; fills in producer and backends. Called once. After it the
  // process must have a single thread.
  std::function<absl::StatusOr<internal::FromZygote::Ready>()> load;
  // Runs a job in a sandboxed child. `fds` are the job's files, in its order. std::bad_alloc may
  // leave it and is reported as OUT_OF_MEMORY; other exceptions end the child.
  std::function<absl::StatusOr<internal::Done>(const internal::Job& job, absl::Span<const int> fds,
                                               ChildHost& host)>
      run_job;
};

// Serves forks over kControlFd until lowerd closes it. Returns the exit code of the process. Call
// it from main, before any thread exists; it closes all descriptors above kControlFd.
int RunZygote(const ZygoteProgram& program);

}  // namespace lowerd::pool
