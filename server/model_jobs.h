#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "lowerd/v1/lowering.pb.h"
#include "server/lowering_request.h"
#include "src/blob/blob_store.h"
#include "src/jobs/job_runner.h"
#include "src/names/type_name_registry.h"
#include "src/pool/worker_pool.h"

namespace lowerd::server {

// The three jobs on models, from blobs to blobs: opens what the request names, lets the pool do the
// work, claims names on the child's behalf, and stores what came out. Thread-safe; calls block.
class ModelJobs : public jobs::JobRunner {
 public:
  // All must outlive this object, and the registry the pool.
  ModelJobs(pool::WorkerPool& pool, blob::BlobStore& blobs, names::TypeNameRegistry& registry,
            RequestLimits limits);

  // Runs a LowerModel operation; the result is a serialised LowerModelResponse.
  absl::StatusOr<jobs::JobResult> Run(
      const jobs::Operation& operation, const Cancellation& cancellation,
      const std::function<void(const jobs::Progress&)>& progress) override;

  // `cancellation` may be null.
  absl::StatusOr<v1::LoweringPlan> Plan(const LoweringRequest& request,
                                        const Cancellation* cancellation);
  absl::StatusOr<v1::ModelDescription> Inspect(const Digest& model,
                                               const Cancellation* cancellation);

  const Toolchain& toolchain() const { return toolchain_; }
  const RequestLimits& limits() const { return limits_; }

 private:
  struct OpenFiles;
  absl::StatusOr<OpenFiles> OpenInputs(const std::vector<Digest>& inputs);
  // `failure`, or what is behind it: an input whose bytes have been damaged in the store.
  absl::Status Explain(const absl::Status& failure, const std::vector<Digest>& inputs);
  // Pins it, too.
  absl::Status AddOutput(const Digest& digest, jobs::JobResult& result);

  pool::WorkerPool& pool_;
  blob::BlobStore& blobs_;
  names::TypeNameRegistry& registry_;
  const RequestLimits limits_;
  const Toolchain toolchain_;
};

}  // namespace lowerd::server
