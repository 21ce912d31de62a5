#include "server/operations_service.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/alarm.h>

#include "server/operation_proto.h"
#include "server/unary_call.h"
#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

constexpr absl::Duration kDefaultWait = absl::Minutes(10);

// Answers when the operation is done or the time is over. Holds no thread while it waits. The
// reactor owns itself.
class OperationWait final : public grpc::ServerUnaryReactor {
 public:
  OperationWait(jobs::JobService& jobs, ThreadPool& pool, std::string name, absl::Duration timeout,
                google::longrunning::Operation& response)
      : pool_(pool), response_(response), deadline_(absl::Now() + timeout) {
    pool_.Schedule([this, &jobs, name = std::move(name)] { Begin(jobs, name); });
  }

  void OnCancel() override {
    Settle([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { over_ = true; });
  }

  // The watch waits for its callback and the alarm for its own, so this is no place to end them.
  void OnDone() override {
    pool_.Schedule([this] {
      // Whoever called Finish may still hold the lock.
      { absl::MutexLock lock(&mutex_); }
      delete this;
    });
  }

 private:
  void Begin(jobs::JobService& jobs, const std::string& name) {
    auto watch =
        jobs.WatchOperation(name, [this](const absl::StatusOr<jobs::Operation>& operation) {
          Settle([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { latest_ = operation; });
        });
    Settle([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (watch.ok()) {
        watch_ = *std::move(watch);
      } else {
        latest_ = watch.status();
      }
      // The alarm's callback comes exactly once; the call ends only after it.
      alarm_running_ = true;
      alarm_.Set(absl::ToChronoTime(deadline_), [this](bool) {
        Settle([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          over_ = true;
          alarm_running_ = false;
        });
      });
      begun_ = true;
    });
  }

  // Changes the state, then ends the call if that is due.
  template <typename Change>
  void Settle(Change change) {
    absl::MutexLock lock(&mutex_);
    change();
    const bool known = latest_.has_value() && (!latest_->ok() || (*latest_)->done());
    if (!begun_ || finished_ || !(known || over_)) return;
    if (alarm_running_) {
      alarm_.Cancel();
      return;
    }
    finished_ = true;
    if (latest_.has_value() && latest_->ok()) response_ = OperationToProto(**latest_);
    Finish(latest_.has_value() ? rpc::ToGrpc(WithReason(latest_->status())) : grpc::Status::OK);
  }

  ThreadPool& pool_;
  google::longrunning::Operation& response_;
  const absl::Time deadline_;
  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool alarm_running_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::StatusOr<jobs::Operation>> latest_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm alarm_;
  // Last, so that it ends before what its callback uses.
  std::unique_ptr<jobs::JobService::Watch> watch_;
};

std::optional<bool> ParseBool(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

std::optional<jobs::State> ParseState(absl::string_view text) {
  static const auto& states = *new std::map<absl::string_view, jobs::State>{
      {"QUEUED", jobs::State::kQueued},       {"LOADING", jobs::State::kLoading},
      {"LOWERING", jobs::State::kLowering},   {"SERIALIZING", jobs::State::kSerializing},
      {"VERIFYING", jobs::State::kVerifying}, {"DONE", jobs::State::kDone}};
  const auto found = states.find(text);
  return found == states.end() ? std::nullopt : std::optional<jobs::State>(found->second);
}

}  // namespace

absl::StatusOr<jobs::JobService::Filter> ParseOperationFilter(absl::string_view text) {
  jobs::JobService::Filter out;
  if (absl::StripAsciiWhitespace(text).empty()) return out;
  for (const absl::string_view term : absl::StrSplit(text, " AND ")) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(term, absl::MaxSplits('=', 1));
    const absl::string_view field = absl::StripAsciiWhitespace(sides.first);
    const absl::string_view value = absl::StripAsciiWhitespace(sides.second);
    bool understood = false;
    if ((field == "state" && out.state) || (field == "done" && out.done) ||
        (field == "error" && out.failed)) {
      return FieldError("filter", absl::StrCat("names ", field, " twice"));
    }
    if (field == "state") {
      out.state = ParseState(value);
      understood = out.state.has_value();
    } else if (field == "done") {
      out.done = ParseBool(value);
      understood = out.done.has_value();
    } else if (field == "error") {
      out.failed = ParseBool(value);
      understood = out.failed.has_value();
    }
    if (!understood) {
      return FieldError("filter",
                        absl::StrCat("\"", absl::StripAsciiWhitespace(term).substr(0, 100),
                                     "\" is not state = STATE, done = true|false or error = "
                                     "true|false"));
    }
  }
  return out;
}

grpc::ServerUnaryReactor* OperationsService::ListOperations(
    grpc::CallbackServerContext* context, const google::longrunning::ListOperationsRequest* request,
    google::longrunning::ListOperationsResponse* response) {
  auto filter = ParseOperationFilter(request->filter());
  if (!filter.ok()) return FinishNow(*context, filter.status());
  return RunBlocking(
      pool_,
      [this, request, response, filter = *std::move(filter)](const Cancellation&) -> absl::Status {
        LOWERD_ASSIGN_OR_RETURN(const jobs::JobService::Page page,
                                jobs_.List(filter, request->page_size(), request->page_token()));
        for (const jobs::Operation& operation : page.operations) {
          *response->add_operations() = OperationToProto(operation);
        }
        response->set_next_page_token(page.next_page_token);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OperationsService::GetOperation(
    grpc::CallbackServerContext*, const google::longrunning::GetOperationRequest* request,
    google::longrunning::Operation* response) {
  return RunBlocking(pool_, [this, request, response](const Cancellation&) -> absl::Status {
    LOWERD_ASSIGN_OR_RETURN(const jobs::Operation operation, jobs_.Get(request->name()));
    *response = OperationToProto(operation);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OperationsService::DeleteOperation(
    grpc::CallbackServerContext*, const google::longrunning::DeleteOperationRequest* request,
    google::protobuf::Empty*) {
  return RunBlocking(
      pool_, [this, request](const Cancellation&) { return jobs_.Delete(request->name()); });
}

grpc::ServerUnaryReactor* OperationsService::CancelOperation(
    grpc::CallbackServerContext*, const google::longrunning::CancelOperationRequest* request,
    google::protobuf::Empty*) {
  return RunBlocking(
      pool_, [this, request](const Cancellation&) { return jobs_.Cancel(request->name()); });
}

grpc::ServerUnaryReactor* OperationsService::WaitOperation(
    grpc::CallbackServerContext*, const google::longrunning::WaitOperationRequest* request,
    google::longrunning::Operation* response) {
  absl::Duration timeout = kDefaultWait;
  if (request->has_timeout()) {
    timeout =
        absl::Seconds(request->timeout().seconds()) + absl::Nanoseconds(request->timeout().nanos());
  }
  return new OperationWait(jobs_, pool_, request->name(), timeout, *response);
}

}  // namespace lowerd::server
