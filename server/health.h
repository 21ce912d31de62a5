#pragma once

#include <atomic>

#include "absl/status/status.h"

#include "src/blob/blob_store.h"
#include "src/jobs/job_service.h"
#include "src/pool/worker_pool.h"

namespace lowerd::server {

// Whether this server can do its work. Thread-safe.
class Health {
 public:
  // All must outlive this object.
  Health(jobs::JobService& jobs, const pool::WorkerPool& workers, blob::BlobStore& blobs)
      : jobs_(jobs), workers_(workers), blobs_(blobs) {}

  // An error if only a restart can help: the worker process does not start any more. Never blocks
  // on I/O.
  absl::Status Live() const;
  // An error if work should go elsewhere for now: draining, or workers, state store or blob store
  // do not do their part. Asks each of them, so it may block.
  absl::Status Ready();

  // Ready says no from now on.
  void SetDraining() { draining_ = true; }

 private:
  jobs::JobService& jobs_;
  const pool::WorkerPool& workers_;
  blob::BlobStore& blobs_;
  std::atomic<bool> draining_ = false;
};

}  // namespace lowerd::server
