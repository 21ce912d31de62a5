#include "client/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/longrunning/operations.grpc.pb.h"

#include "client/channel.h"
#include "client/uuid.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "lowerd/v1/lowering.grpc.pb.h"
#include "lowerd/v1/type_names.grpc.pb.h"
#include "src/base/error.h"

namespace lowerd::client {
namespace {

using google::longrunning::Operation;
using google::longrunning::Operations;
using lowerd::v1::LoweringService;
using lowerd::v1::TypeNames;

// How long the server may hold one WaitOperation when it cannot be watched.
constexpr absl::Duration kPollPeriod = absl::Seconds(10);

}  // namespace

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : lowering(channel), operations(channel), type_names(channel), health(channel) {}

  LoweringService::Stub lowering;
  Operations::Stub operations;
  TypeNames::Stub type_names;
  grpc::health::v1::Health::Stub health;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  LOWERD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, CreateChannel(options));
  return std::unique_ptr<Client>(new Client(options, channel));
}

Client::Client(const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
    : calls_(options, channel), blobs_(channel, calls_), stubs_(std::make_unique<Stubs>(channel)) {}

Client::~Client() = default;

void Client::Stop() { calls_.Stop(); }

bool Client::stopped() const { return calls_.stopped(); }

absl::Status Client::Upload(absl::Span<const LocalFile* const> files,
                            const ByteProgress& progress) {
  return blobs_.Upload(files, progress);
}

absl::Status Client::Download(absl::Span<const DownloadItem> items, const ByteProgress& progress) {
  return blobs_.Download(items, progress);
}

absl::StatusOr<Operation> Client::LowerModel(lowerd::v1::LowerModelRequest request) {
  if (calls_.stopped()) return Calls::StoppedError();
  if (request.request_id().empty()) request.set_request_id(RandomUuid());
  return RetriedCall<Operation>(
      calls_,
      [&](auto* context, auto* out) { return stubs_->lowering.LowerModel(context, request, out); },
      Stoppable::kNo);
}

absl::Status Client::WatchOnce(const std::string& name, const OperationCallback& changed,
                               Operation& last, bool& received) {
  lowerd::v1::WatchOperationRequest request;
  request.set_name(name);
  CallContext context(calls_, calls_.options().watch_period);
  const auto stream = stubs_->lowering.WatchOperation(context.get(), request);
  while (stream->Read(&last)) {
    received = true;
    if (changed) changed(last);
  }
  return calls_.FromGrpc(stream->Finish());
}

absl::StatusOr<Operation> Client::Watch(const std::string& name, const OperationCallback& changed) {
  Backoff backoff(calls_);
  bool can_watch = true;
  while (true) {
    if (calls_.stopped()) return Calls::StoppedError();
    Operation last;
    bool received = false;
    absl::Status status;
    if (can_watch) {
      status = WatchOnce(name, changed, last, received);
      // The period of one subscription is over; if it told nothing at all, something is wrong.
      if (absl::IsDeadlineExceeded(status) && received) status = absl::OkStatus();
      can_watch = !absl::IsUnimplemented(status);
      if (!can_watch) continue;
    } else {
      absl::StatusOr<Operation> polled = WaitOperation(name, kPollPeriod);
      if (absl::IsUnimplemented(polled.status())) {
        polled = GetOperation(name);
        // A server that cannot hold the call must not be asked without a pause.
        if (polled.ok() && !polled->done()) calls_.Wait(absl::Seconds(1));
      }
      status = polled.status();
      if (polled.ok()) {
        received = true;
        last = *std::move(polled);
        if (changed) changed(last);
      }
    }
    if (received) {
      backoff.Reset();
      if (last.done()) return last;
    }
    if (status.ok() && received) continue;
    // A stream that ended without a word is a server that goes down.
    if (status.ok()) {
      status =
          MakeError(Reason::kServerUnavailable, absl::StrCat("the server tells nothing of ", name));
    }
    if (!backoff.TryAgain(status)) return status;
  }
}

absl::StatusOr<lowerd::v1::LoweringPlan> Client::Plan(
    const lowerd::v1::LowerModelRequest& request) {
  return RetriedCall<lowerd::v1::LoweringPlan>(calls_, [&](auto* context, auto* out) {
    return stubs_->lowering.PlanLowering(context, request, out);
  });
}

absl::StatusOr<lowerd::v1::ModelDescription> Client::Inspect(const Digest& model) {
  lowerd::v1::InspectModelRequest request;
  request.set_instance_name(calls_.options().instance_name);
  request.mutable_model()->set_hash(model.hex());
  request.mutable_model()->set_size_bytes(model.size_bytes());
  return RetriedCall<lowerd::v1::ModelDescription>(calls_, [&](auto* context, auto* out) {
    return stubs_->lowering.InspectModel(context, request, out);
  });
}

absl::StatusOr<lowerd::v1::ListBackendsResponse> Client::ListBackends() {
  return RetriedCall<lowerd::v1::ListBackendsResponse>(calls_, [&](auto* context, auto* out) {
    return stubs_->lowering.ListBackends(context, {}, out);
  });
}

absl::StatusOr<Operation> Client::GetOperation(const std::string& name) {
  google::longrunning::GetOperationRequest request;
  request.set_name(name);
  return RetriedCall<Operation>(calls_, [&](auto* context, auto* out) {
    return stubs_->operations.GetOperation(context, request, out);
  });
}

absl::StatusOr<google::longrunning::ListOperationsResponse> Client::ListOperations(
    const google::longrunning::ListOperationsRequest& request) {
  return RetriedCall<google::longrunning::ListOperationsResponse>(
      calls_, [&](auto* context, auto* out) {
        return stubs_->operations.ListOperations(context, request, out);
      });
}

absl::StatusOr<Operation> Client::WaitOperation(const std::string& name, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    // The server must answer well before the call's own deadline.
    const absl::Duration hold =
        std::clamp(end - absl::Now(), absl::ZeroDuration(),
                   std::min(calls_.options().call_timeout / 2, kPollPeriod));
    google::longrunning::WaitOperationRequest request;
    request.set_name(name);
    absl::Duration rest = hold;
    request.mutable_timeout()->set_seconds(absl::IDivDuration(hold, absl::Seconds(1), &rest));
    request.mutable_timeout()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(rest)));
    LOWERD_ASSIGN_OR_RETURN(Operation operation,
                            RetriedCall<Operation>(calls_, [&](auto* context, auto* out) {
                              return stubs_->operations.WaitOperation(context, request, out);
                            }));
    if (operation.done() || absl::Now() >= end) return operation;
  }
}

absl::Status Client::CancelOperation(const std::string& name) {
  google::longrunning::CancelOperationRequest request;
  request.set_name(name);
  return RetriedCall<google::protobuf::Empty>(
             calls_,
             [&](auto* context, auto* out) {
               return stubs_->operations.CancelOperation(context, request, out);
             },
             Stoppable::kNo)
      .status();
}

absl::Status Client::DeleteOperation(const std::string& name) {
  google::longrunning::DeleteOperationRequest request;
  request.set_name(name);
  google::protobuf::Empty response;
  // Tried once: a second try could not tell its own work from an operation that never was.
  CallContext context(calls_, calls_.options().call_timeout);
  return calls_.FromGrpc(stubs_->operations.DeleteOperation(context.get(), request, &response));
}

absl::StatusOr<lowerd::v1::ResolveTypeNameResponse> Client::ResolveTypeName(
    const std::string& name) {
  lowerd::v1::ResolveTypeNameRequest request;
  request.set_name(name);
  return RetriedCall<lowerd::v1::ResolveTypeNameResponse>(calls_, [&](auto* context, auto* out) {
    return stubs_->type_names.ResolveTypeName(context, request, out);
  });
}

absl::StatusOr<lowerd::v1::ListTypeNamesResponse> Client::ListTypeNames(
    const lowerd::v1::ListTypeNamesRequest& request) {
  return RetriedCall<lowerd::v1::ListTypeNamesResponse>(calls_, [&](auto* context, auto* out) {
    return stubs_->type_names.ListTypeNames(context, request, out);
  });
}

absl::StatusOr<grpc::health::v1::HealthCheckResponse> Client::Health(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  CallContext context(calls_, calls_.options().call_timeout);
  LOWERD_RETURN_IF_ERROR(calls_.FromGrpc(stubs_->health.Check(context.get(), request, &response)));
  return response;
}

absl::Status OperationError(const Operation& operation) {
  if (!operation.has_error()) return absl::OkStatus();
  return ParseStatus(operation.error().SerializeAsString());
}

absl::StatusOr<lowerd::v1::LowerModelResponse> LoweringResult(const Operation& operation) {
  LOWERD_RETURN_IF_ERROR(OperationError(operation));
  lowerd::v1::LowerModelResponse response;
  if (!operation.response().UnpackTo(&response)) {
    return MakeError(Reason::kInternalError,
                     absl::StrCat(operation.name(), " ended without a result of a lowering"));
  }
  return response;
}

lowerd::v1::LowerModelMetadata LoweringProgress(const Operation& operation) {
  lowerd::v1::LowerModelMetadata metadata;
  if (!operation.metadata().UnpackTo(&metadata)) metadata.Clear();
  return metadata;
}

}  // namespace lowerd::client
