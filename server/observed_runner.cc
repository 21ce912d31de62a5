#include "server/observed_runner.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "server/logging.h"
#include "server/operation_proto.h"
#include "src/base/error.h"

namespace lowerd::server {

absl::StatusOr<jobs::JobResult> ObservedRunner::Run(
    const jobs::Operation& operation, const Cancellation& cancellation,
    const std::function<void(const jobs::Progress&)>& progress) {
  const absl::Time start = absl::Now();
  // A job that comes back after a crash of the server has not waited since it was created.
  const bool waited = operation.attempt <= 1 && operation.created > absl::UnixEpoch();
  if (waited) {
    metrics_.ObservePhase(StateName(jobs::State::kQueued), start - operation.created);
  }
  jobs::State phase = jobs::State::kLoading;
  absl::Time phase_start = start;
  // A second try after a crash begins again with LOADING, and counts again.
  const auto enter = [&](jobs::State next) {
    if (next == phase) return;
    const absl::Time now = absl::Now();
    metrics_.ObservePhase(StateName(phase), now - phase_start);
    phase = next;
    phase_start = now;
  };
  absl::StatusOr<jobs::JobResult> result =
      runner_.Run(operation, cancellation, [&](const jobs::Progress& p) {
        enter(p.state);
        progress(p);
      });
  const absl::Time end = absl::Now();
  metrics_.ObservePhase(StateName(phase), end - phase_start);
  const absl::Status status = WithReason(result.status());
  const std::string reason = status.ok() ? "OK" : ReasonOf(status);
  metrics_.CountJob(reason, end - start);

  LogFields fields = {{"operation", operation.name},
                      {"client", operation.client},
                      {"trace_id", traces_.Find(operation.name)},
                      {"reason", reason},
                      {"seconds", absl::StrFormat("%.3f", absl::ToDoubleSeconds(end - start))}};
  if (waited) {
    fields.emplace_back("queued_seconds",
                        absl::StrFormat("%.3f", absl::ToDoubleSeconds(start - operation.created)));
  }
  if (!status.ok()) {
    fields.emplace_back("phase", StateName(phase));
    fields.emplace_back("error", status.message());
  }
  LogEvent(status.ok() ? LogLevel::kInfo : LogLevel::kWarning, "job ended", fields);
  return result;
}

}  // namespace lowerd::server
