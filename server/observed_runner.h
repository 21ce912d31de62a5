#pragma once

#include "server/metrics.h"
#include "server/operation_traces.h"
#include "src/jobs/job_runner.h"

namespace lowerd::server {

// Runs jobs by another runner and records how they went: time in each phase and how they ended, as
// metrics and as one log line a job. Thread-safe.
class ObservedRunner final : public jobs::JobRunner {
 public:
  // All must outlive this object.
  ObservedRunner(jobs::JobRunner& runner, Metrics& metrics, OperationTraces& traces)
      : runner_(runner), metrics_(metrics), traces_(traces) {}

  absl::StatusOr<jobs::JobResult> Run(
      const jobs::Operation& operation, const Cancellation& cancellation,
      const std::function<void(const jobs::Progress&)>& progress) override;

 private:
  jobs::JobRunner& runner_;
  Metrics& metrics_;
  OperationTraces& traces_;
};

}  // namespace lowerd::server
