#pragma once

#include <utility>
#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include "server/transfer_counts.h"
#include "src/blob/blob_store.h"
#include "src/jobs/job_service.h"
#include "src/pool/worker_pool.h"

namespace lowerd::server {

// What the server's parts say of themselves, as metrics: build, queue, cache, workers and their
// crashes, blob store, transferred bytes. Reads at each Collect; thread-safe.
class MetricsSource final : public prometheus::Collectable {
 public:
  // All must outlive this object.
  MetricsSource(const jobs::JobService& jobs, const pool::WorkerPool& workers,
                const blob::BlobStore& blobs, std::vector<const TransferCounts*> transfers)
      : jobs_(jobs), workers_(workers), blobs_(blobs), transfers_(std::move(transfers)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const jobs::JobService& jobs_;
  const pool::WorkerPool& workers_;
  const blob::BlobStore& blobs_;
  const std::vector<const TransferCounts*> transfers_;
};

}  // namespace lowerd::server
