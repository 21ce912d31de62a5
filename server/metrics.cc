#include "server/metrics.h"

#include <utility>
#include <vector>

#include <prometheus/text_serializer.h>

namespace lowerd::server {
namespace {

// Seconds. Calls take from microseconds (a cache hit) to minutes (a watch).
prometheus::Histogram::BucketBoundaries CallBuckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
          0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    300};
}

// Seconds. Jobs take from milliseconds to the largest --max-job-timeout.
prometheus::Histogram::BucketBoundaries JobBuckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
          2.5,   5,      10,    30,   60,    120,  300, 900,  1800};
}

}  // namespace

Metrics::Metrics()
    : calls_(prometheus::BuildCounter()
                 .Name("lowerd_grpc_calls_total")
                 .Help("gRPC calls that ended, by method and status code")
                 .Register(registry_)),
      refusals_(prometheus::BuildCounter()
                    .Name("lowerd_grpc_refused_calls_total")
                    .Help("gRPC calls refused before they reached a service, by reason: "
                          "NOT_AUTHENTICATED or NOT_ALLOWED")
                    .Register(registry_)),
      call_seconds_(prometheus::BuildHistogram()
                        .Name("lowerd_grpc_call_seconds")
                        .Help("Time from the start of a gRPC call to its status; of uploads, "
                              "downloads, waits and watches the whole stream")
                        .Register(registry_)),
      phase_seconds_(prometheus::BuildHistogram()
                         .Name("lowerd_job_phase_seconds")
                         .Help("Time of jobs in each phase; QUEUED is the wait for a worker, the "
                               "last phase includes storing what was made")
                         .Register(registry_)),
      jobs_(prometheus::BuildCounter()
                .Name("lowerd_jobs_total")
                .Help("Jobs that ended on this server, by reason; OK for success")
                .Register(registry_)),
      job_seconds_(prometheus::BuildHistogram()
                       .Name("lowerd_job_seconds")
                       .Help("Time of jobs from their start to their end, without the queue")
                       .Register(registry_)
                       .Add({}, JobBuckets())) {}

void Metrics::CountCall(const std::string& method, absl::string_view code,
                        absl::Duration duration) {
  calls_.Add({{"method", method}, {"code", std::string(code)}}).Increment();
  call_seconds_.Add({{"method", method}}, CallBuckets()).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountRefusal(absl::string_view reason) {
  refusals_.Add({{"reason", std::string(reason)}}).Increment();
}

void Metrics::ObservePhase(absl::string_view phase, absl::Duration duration) {
  phase_seconds_.Add({{"phase", std::string(phase)}}, JobBuckets())
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountJob(absl::string_view reason, absl::Duration duration) {
  jobs_.Add({{"reason", std::string(reason)}}).Increment();
  job_seconds_.Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::AddSource(std::shared_ptr<prometheus::Collectable> source) {
  sources_.push_back(std::move(source));
}

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (const auto& source : sources_) {
    for (prometheus::MetricFamily& family : source->Collect()) {
      families.push_back(std::move(family));
    }
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace lowerd::server
