#pragma once

#include "google/longrunning/operations.grpc.pb.h"

#include "src/base/thread_pool.h"
#include "src/jobs/job_service.h"

namespace lowerd::server {

// google.longrunning.Operations. Thread-safe; nothing blocks in a reactor.
class OperationsService final : public google::longrunning::Operations::CallbackService {
 public:
  // Both must outlive this object, which must outlive the gRPC server.
  OperationsService(jobs::JobService& jobs, ThreadPool& pool) : jobs_(jobs), pool_(pool) {}

  grpc::ServerUnaryReactor* ListOperations(
      grpc::CallbackServerContext* context,
      const google::longrunning::ListOperationsRequest* request,
      google::longrunning::ListOperationsResponse* response) override;
  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext* context,
                                         const google::longrunning::GetOperationRequest* request,
                                         google::longrunning::Operation* response) override;
  grpc::ServerUnaryReactor* DeleteOperation(
      grpc::CallbackServerContext* context,
      const google::longrunning::DeleteOperationRequest* request,
      google::protobuf::Empty* response) override;
  grpc::ServerUnaryReactor* CancelOperation(
      grpc::CallbackServerContext* context,
      const google::longrunning::CancelOperationRequest* request,
      google::protobuf::Empty* response) override;
  grpc::ServerUnaryReactor* WaitOperation(grpc::CallbackServerContext* context,
                                          const google::longrunning::WaitOperationRequest* request,
                                          google::longrunning::Operation* response) override;

 private:
  jobs::JobService& jobs_;
  ThreadPool& pool_;
};

// INVALID_REQUEST names the term that is not understood.
absl::StatusOr<jobs::JobService::Filter> ParseOperationFilter(absl::string_view text);

}  // namespace lowerd::server
