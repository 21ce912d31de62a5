#include "server/lowering_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "server/client_identity.h"
#include "server/operation_proto.h"
#include "server/unary_call.h"
#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

// Inspections and plans that may wait for a worker.
constexpr int kMaxWaitingCalls = 64;
constexpr absl::Duration kQueueFullDelay = absl::Seconds(2);

// Streams an operation's states. Slow readers miss states in between, never the last one. The
// reactor owns itself.
class OperationWatch final : public grpc::ServerWriteReactor<google::longrunning::Operation> {
 public:
  OperationWatch(jobs::JobService& jobs, ThreadPool& pool, std::string name) : pool_(pool) {
    pool_.Schedule([this, &jobs, name = std::move(name)] { Begin(jobs, name); });
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) cancelled_ = true;
    AdvanceLocked();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    AdvanceLocked();
  }

  // Ending the watch waits for its callbacks, so it must not happen on a thread that runs one.
  void OnDone() override {
    pool_.Schedule([this] {
      // Whoever called Finish may still hold the lock.
      { absl::MutexLock lock(&mutex_); }
      delete this;
    });
  }

 private:
  void Begin(jobs::JobService& jobs, const std::string& name) {
    auto watch = jobs.WatchOperation(
        name, [this](const absl::StatusOr<jobs::Operation>& operation) { OnChange(operation); });
    absl::MutexLock lock(&mutex_);
    if (watch.ok()) {
      watch_ = *std::move(watch);
    } else {
      end_ = watch.status();
    }
    begun_ = true;
    AdvanceLocked();
  }

  void OnChange(const absl::StatusOr<jobs::Operation>& operation) {
    absl::MutexLock lock(&mutex_);
    if (!operation.ok()) {
      end_ = operation.status();
    } else {
      next_ = OperationToProto(*operation);
      has_next_ = true;
      if (operation->done()) end_ = absl::OkStatus();
    }
    AdvanceLocked();
  }

  // Does the one thing that can be done now: a write, or the end. Nothing ends before Begin has, as
  // OnDone may only come when nobody uses this object.
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!begun_ || writing_ || finished_) return;
    if (cancelled_) {
      finished_ = true;
      Finish(rpc::ToGrpc(MakeError(Reason::kOperationCancelled, "the caller went away")));
    } else if (has_next_) {
      has_next_ = false;
      writing_ = true;
      current_ = std::move(next_);
      StartWrite(&current_);
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(rpc::ToGrpc(*end_));
    }
  }

  ThreadPool& pool_;
  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_next_ ABSL_GUARDED_BY(mutex_) = false;
  google::longrunning::Operation next_ ABSL_GUARDED_BY(mutex_);
  // Being written; gRPC reads it without the lock.
  google::longrunning::Operation current_;
  // Set when no further state will come.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  // Last, so that it ends before what its callback uses.
  std::unique_ptr<jobs::JobService::Watch> watch_;
};

}  // namespace

LoweringService::LoweringService(jobs::JobService& jobs, ModelJobs& models,
                                 const pool::WorkerPool& workers, ThreadPool& pool,
                                 ThreadPool& model_pool)
    : jobs_(jobs), models_(models), workers_(workers), pool_(pool), model_pool_(model_pool) {}

grpc::ServerUnaryReactor* LoweringService::LowerModel(grpc::CallbackServerContext* context,
                                                      const v1::LowerModelRequest* request,
                                                      google::longrunning::Operation* response) {
  auto parsed = ParseLoweringRequest(*request, models_.toolchain(), models_.limits());
  if (!parsed.ok()) return FinishNow(*context, parsed.status());
  const bool bypass = request->cache_policy() == v1::BYPASS;
  // A request with an id must go by the operation that has this id, if there is one.
  if (!bypass && request->request_id().empty()) {
    if (auto cached = jobs_.TryCached(parsed->action_key)) {
      *response = OperationToProto(*cached);
      return FinishNow(*context, absl::OkStatus());
    }
  }
  jobs::JobService::NewOperation operation;
  operation.client = ClientIdentity(*context);
  operation.request_id = request->request_id();
  operation.action_key = std::move(parsed->action_key);
  operation.request = request->SerializeAsString();
  operation.inputs = std::move(parsed->inputs);
  operation.priority = request->priority();
  operation.bypass_cache = bypass;
  operation.timeout = parsed->timeout;
  return RunBlocking(
      pool_,
      [this, response,
       operation = std::move(operation)](const Cancellation&) mutable -> absl::Status {
        LOWERD_ASSIGN_OR_RETURN(const jobs::Operation accepted, jobs_.Submit(std::move(operation)));
        *response = OperationToProto(accepted);
        return absl::OkStatus();
      });
}

absl::Status LoweringService::CheckRoom() const {
  const int waiting = model_pool_.queued();
  if (waiting < kMaxWaitingCalls) return absl::OkStatus();
  absl::Status full = MakeError(
      Reason::kQueueFull,
      absl::StrCat(waiting, " inspections and plans are waiting already; try again in a while"));
  SetRetryDelay(full, kQueueFullDelay);
  return full;
}

grpc::ServerUnaryReactor* LoweringService::PlanLowering(grpc::CallbackServerContext* context,
                                                        const v1::LowerModelRequest* request,
                                                        v1::LoweringPlan* response) {
  auto parsed = ParseLoweringRequest(*request, models_.toolchain(), models_.limits());
  if (!parsed.ok()) return FinishNow(*context, parsed.status());
  if (absl::Status status = CheckRoom(); !status.ok()) return FinishNow(*context, status);
  return RunBlocking(model_pool_,
                     [this, response, parsed = *std::move(parsed)](
                         const Cancellation& cancellation) -> absl::Status {
                       LOWERD_ASSIGN_OR_RETURN(*response, models_.Plan(parsed, &cancellation));
                       return absl::OkStatus();
                     });
}

grpc::ServerUnaryReactor* LoweringService::InspectModel(grpc::CallbackServerContext* context,
                                                        const v1::InspectModelRequest* request,
                                                        v1::ModelDescription* response) {
  auto model = ParseDigest(request->model(), "model");
  if (!model.ok()) return FinishNow(*context, model.status());
  if (absl::Status status = CheckRoom(); !status.ok()) return FinishNow(*context, status);
  return RunBlocking(model_pool_,
                     [this, response,
                      model = *std::move(model)](const Cancellation& cancellation) -> absl::Status {
                       LOWERD_ASSIGN_OR_RETURN(*response, models_.Inspect(model, &cancellation));
                       return absl::OkStatus();
                     });
}

grpc::ServerWriteReactor<google::longrunning::Operation>* LoweringService::WatchOperation(
    grpc::CallbackServerContext*, const v1::WatchOperationRequest* request) {
  return new OperationWatch(jobs_, pool_, request->name());
}

grpc::ServerUnaryReactor* LoweringService::ListBackends(grpc::CallbackServerContext* context,
                                                        const v1::ListBackendsRequest*,
                                                        v1::ListBackendsResponse* response) {
  const internal::FromZygote::Ready& toolchain = workers_.toolchain();
  *response->mutable_backends() = toolchain.backends();
  *response->mutable_producer() = toolchain.producer();
  return FinishNow(*context, absl::OkStatus());
}

}  // namespace lowerd::server
