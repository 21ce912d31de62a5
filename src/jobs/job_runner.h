#pragma once

#include <functional>

#include "absl/status/statusor.h"

#include "src/base/cancellation.h"
#include "src/jobs/operation.h"

namespace lowerd::jobs {

// Does the work of one job. Implemented over the worker pool by the server, by fakes in tests.
class JobRunner {
 public:
  virtual ~JobRunner() = default;

  // Runs the job of `operation` to its end and blocks until then. Called from several threads at
  // once. Returns within 200 ms after `cancellation`, with OPERATION_CANCELLED. `progress` may be
  // called from the calling thread only. SERVER_UNAVAILABLE means that the job should be queued
  // again; any other error is the job's final one (the pool has retried what is worth retrying).
  virtual absl::StatusOr<JobResult> Run(const Operation& operation,
                                        const Cancellation& cancellation,
                                        const std::function<void(const Progress&)>& progress) = 0;
};

}  // namespace lowerd::jobs
