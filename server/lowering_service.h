#pragma once

#include "lowerd/v1/lowering.grpc.pb.h"
#include "server/model_jobs.h"
#include "src/base/thread_pool.h"
#include "src/jobs/job_service.h"
#include "src/pool/worker_pool.h"

namespace lowerd::server {

// lowerd.v1.LoweringService. Thread-safe; nothing blocks in a reactor.
class LoweringService final : public v1::LoweringService::CallbackService {
 public:
  // All must outlive this object, which must outlive the gRPC server. `pool` runs calls that touch
  // the database; `model_pool` those that wait for a worker.
  LoweringService(jobs::JobService& jobs, ModelJobs& models, const pool::WorkerPool& workers,
                  ThreadPool& pool, ThreadPool& model_pool);

  grpc::ServerUnaryReactor* LowerModel(grpc::CallbackServerContext* context,
                                       const v1::LowerModelRequest* request,
                                       google::longrunning::Operation* response) override;
  grpc::ServerUnaryReactor* PlanLowering(grpc::CallbackServerContext* context,
                                         const v1::LowerModelRequest* request,
                                         v1::LoweringPlan* response) override;
  grpc::ServerUnaryReactor* InspectModel(grpc::CallbackServerContext* context,
                                         const v1::InspectModelRequest* request,
                                         v1::ModelDescription* response) override;
  grpc::ServerWriteReactor<google::longrunning::Operation>* WatchOperation(
      grpc::CallbackServerContext* context, const v1::WatchOperationRequest* request) override;
  grpc::ServerUnaryReactor* ListBackends(grpc::CallbackServerContext* context,
                                         const v1::ListBackendsRequest* request,
                                         v1::ListBackendsResponse* response) override;

 private:
  // QUEUE_FULL if too many calls wait for model_pool_.
  absl::Status CheckRoom() const;

  jobs::JobService& jobs_;
  ModelJobs& models_;
  const pool::WorkerPool& workers_;
  ThreadPool& pool_;
  ThreadPool& model_pool_;
};

}  // namespace lowerd::server
