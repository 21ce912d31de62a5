#include "server/metrics_source.h"

#include <string>
#include <utility>

#include <prometheus/client_metric.h>
#include <prometheus/metric_type.h>

#include "src/base/version.h"

namespace lowerd::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric Metric(MetricType type, double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric out;
  out.label = std::move(labels);
  if (type == MetricType::Counter) {
    out.counter.value = value;
  } else {
    out.gauge.value = value;
  }
  return out;
}

// One metric without labels.
MetricFamily Single(MetricType type, std::string name, std::string help, int64_t value) {
  return {std::move(name), std::move(help), type, {Metric(type, static_cast<double>(value), {})}};
}

MetricFamily Gauge(std::string name, std::string help, int64_t value) {
  return Single(MetricType::Gauge, std::move(name), std::move(help), value);
}

MetricFamily Counter(std::string name, std::string help, int64_t value) {
  return Single(MetricType::Counter, std::move(name), std::move(help), value);
}

}  // namespace

std::vector<MetricFamily> MetricsSource::Collect() const {
  const jobs::JobService::Stats jobs = jobs_.GetStats();
  const pool::WorkerPool::Stats pool = workers_.GetStats();
  const blob::BlobStore::Stats blobs = blobs_.GetStats();
  int64_t received = 0;
  int64_t sent = 0;
  for (const TransferCounts* counts : transfers_) {
    received += counts->received;
    sent += counts->sent;
  }
  const auto crash = [](const char* cause, int64_t count) {
    return Metric(MetricType::Counter, static_cast<double>(count), {{"cause", cause}});
  };
  return {
      {"lowerd_build_info",
       "Always 1; the labels say what runs",
       MetricType::Gauge,
       {Metric(MetricType::Gauge, 1,
               {{"version", kVersion},
                {"libtorch", workers_.toolchain().producer().libtorch_version()}})}},
      Gauge("lowerd_queue_jobs", "Jobs that wait for a worker (of all replicas of one state store)",
            jobs.queued),
      Gauge("lowerd_running_jobs", "Jobs that run on this server", jobs.running),
      Counter("lowerd_cache_hits_total", "Requests answered by the action cache in memory",
              jobs.cache_hits),
      Counter("lowerd_cache_misses_total",
              "Requests that the action cache in memory did not answer", jobs.cache_misses),
      Gauge("lowerd_workers", "Jobs that can run at once (--workers)", pool.workers),
      Gauge("lowerd_workers_busy", "Workers that run a job, a dry run or an inspection", pool.busy),
      Gauge("lowerd_workers_ready", "Processes forked ahead that wait for a job", pool.ready),
      {"lowerd_worker_ends_total",
       "Tries of jobs that ended without an answer, by cause: crash is a signal or a breach of the "
       "worker protocol, out_of_memory a limit or the kernel's killer, deadline the job's time",
       MetricType::Counter,
       {crash("crash", pool.crashes), crash("out_of_memory", pool.out_of_memory),
        crash("deadline", pool.deadline_exceeded)}},
      Counter("lowerd_zygote_restarts_total", "Times the process that forks workers was replaced",
              pool.zygote_restarts),
      Gauge("lowerd_store_blobs", "Blobs on this server's disk", blobs.blobs),
      Gauge("lowerd_store_bytes", "Bytes of blobs on this server's disk", blobs.bytes),
      Gauge("lowerd_store_limit_bytes", "--blob-limit; 0 is no limit", blobs.limit_bytes),
      Counter("lowerd_store_evictions_total", "Blobs evicted to make room", blobs.evictions),
      Counter("lowerd_store_evicted_bytes_total", "Bytes of blobs evicted to make room",
              blobs.evicted_bytes),
      Counter("lowerd_blob_received_bytes_total", "Bytes of blobs that clients sent", received),
      Counter("lowerd_blob_sent_bytes_total", "Bytes of blobs that clients fetched", sent),
  };
}

}  // namespace lowerd::server
