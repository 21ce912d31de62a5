#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <gtest/gtest.h>

#include "src/base/cancellation.h"
#include "src/base/fd.h"
#include "src/pool/worker_pool.h"

namespace lowerd::pool {

// How long after its deadline or cancellation a job may end. Sanitizers make the end of a process
// slow, too.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr absl::Duration kLatenessLimit = absl::Seconds(2);
#else
inline constexpr absl::Duration kLatenessLimit = absl::Milliseconds(200);
#endif

// A pool of fake workers, and a check at the end that no process and no descriptor is left behind.
class PoolTest : public testing::Test {
 protected:
  PoolTest();
  void SetUp() override;
  void TearDown() override;

  // Of one fake worker that does what it is told.
  static WorkerPool::Options FakeOptions();
  // Starts (or replaces) the pool.
  void StartPool(WorkerPool::Options options);

  // A LOWER job that makes the fake worker do `action`.
  static WorkerPool::Job FakeJob(absl::string_view action);
  // What the action said.
  absl::StatusOr<std::string> Run(const WorkerPool::Job& job);
  absl::StatusOr<std::string> Run(absl::string_view action) { return Run(FakeJob(action)); }

  std::unique_ptr<WorkerPool> pool_;

 private:
  // Ends the pool and waits until none of its processes is left.
  void EndPool();

  std::vector<std::string> descriptors_before_;
};

// An anonymous file with these bytes; read-only if asked for.
Fd FileOf(absl::string_view bytes, bool read_only = false);
std::string BytesOf(const Fd& file);

// Process ids of the children of `pid`.
std::vector<int> ChildrenOf(int pid);

}  // namespace lowerd::pool
