#include "server/operation_proto.h"

#include <string>

#include "lowerd/v1/lowering.pb.h"
#include "server/lowering_request.h"
#include "src/base/error.h"

namespace lowerd::server {
namespace {

using Metadata = v1::LowerModelMetadata;

Metadata::State ToProto(jobs::State state) {
  switch (state) {
    case jobs::State::kQueued:
      return Metadata::QUEUED;
    case jobs::State::kLoading:
      return Metadata::LOADING;
    case jobs::State::kLowering:
      return Metadata::LOWERING;
    case jobs::State::kSerializing:
      return Metadata::SERIALIZING;
    case jobs::State::kVerifying:
      return Metadata::VERIFYING;
    case jobs::State::kDone:
      return Metadata::DONE;
  }
  return Metadata::STATE_UNSPECIFIED;
}

void SetTime(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  out->set_seconds(seconds);
  out->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

}  // namespace

std::string StateName(jobs::State state) { return Metadata::State_Name(ToProto(state)); }

google::longrunning::Operation OperationToProto(const jobs::Operation& operation) {
  Metadata metadata;
  metadata.set_state(ToProto(operation.progress.state));
  metadata.set_targets_done(operation.progress.targets_done);
  metadata.set_targets_total(operation.progress.targets_total);
  metadata.set_queue_position(operation.queue_position);
  metadata.set_attempt(operation.attempt);
  metadata.set_cached(operation.cached);
  metadata.set_cancel_requested(operation.cancel_requested);
  SetTime(operation.created, metadata.mutable_create_time());
  if (operation.started) SetTime(*operation.started, metadata.mutable_start_time());
  SetTime(operation.updated, metadata.mutable_update_time());
  if (operation.ended) SetTime(*operation.ended, metadata.mutable_end_time());
  // The model is the first input.
  if (!operation.inputs.empty()) {
    *metadata.mutable_model() = DigestToProto(operation.inputs.front());
  }

  google::longrunning::Operation out;
  out.set_name(operation.name);
  out.mutable_metadata()->PackFrom(metadata);
  out.set_done(operation.done());
  if (!operation.done()) return out;
  if (!operation.error.ok()) {
    out.mutable_error()->ParseFromString(SerializeStatus(operation.error));
  } else {
    // The bytes are a LowerModelResponse already.
    out.mutable_response()->set_type_url("type.googleapis.com/" +
                                         v1::LowerModelResponse::descriptor()->full_name());
    out.mutable_response()->set_value(operation.result);
  }
  return out;
}

}  // namespace lowerd::server
