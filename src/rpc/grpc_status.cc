#include "src/rpc/grpc_status.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/any.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

#include "src/base/error.h"

namespace lowerd::rpc {

static_assert(static_cast<int>(absl::StatusCode::kCancelled) == grpc::StatusCode::CANCELLED);
static_assert(static_cast<int>(absl::StatusCode::kUnknown) == grpc::StatusCode::UNKNOWN);
static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) ==
              grpc::StatusCode::INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kDeadlineExceeded) ==
              grpc::StatusCode::DEADLINE_EXCEEDED);
static_assert(static_cast<int>(absl::StatusCode::kNotFound) == grpc::StatusCode::NOT_FOUND);
static_assert(static_cast<int>(absl::StatusCode::kAlreadyExists) ==
              grpc::StatusCode::ALREADY_EXISTS);
static_assert(static_cast<int>(absl::StatusCode::kPermissionDenied) ==
              grpc::StatusCode::PERMISSION_DENIED);
static_assert(static_cast<int>(absl::StatusCode::kResourceExhausted) ==
              grpc::StatusCode::RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(absl::StatusCode::kFailedPrecondition) ==
              grpc::StatusCode::FAILED_PRECONDITION);
static_assert(static_cast<int>(absl::StatusCode::kAborted) == grpc::StatusCode::ABORTED);
static_assert(static_cast<int>(absl::StatusCode::kOutOfRange) == grpc::StatusCode::OUT_OF_RANGE);
static_assert(static_cast<int>(absl::StatusCode::kUnimplemented) ==
              grpc::StatusCode::UNIMPLEMENTED);
static_assert(static_cast<int>(absl::StatusCode::kInternal) == grpc::StatusCode::INTERNAL);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == grpc::StatusCode::UNAVAILABLE);
static_assert(static_cast<int>(absl::StatusCode::kDataLoss) == grpc::StatusCode::DATA_LOSS);
static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
              grpc::StatusCode::UNAUTHENTICATED);

namespace {

// As they stand in the trailers: percent-encoded, and before base64.
constexpr size_t kMaxMessage = 2000;
constexpr size_t kMaxDetails = 3500;
constexpr absl::string_view kCut = "...";

// `message` as far as its percent-encoded form fits, whole UTF-8 characters only.
std::string Cut(absl::string_view message) {
  size_t cost = 0, end = 0;
  for (size_t i = 0; i < message.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(message[i]);
    const bool starts_character = (c & 0xc0) != 0x80;
    if (starts_character) end = i;
    cost += c >= 0x20 && c < 0x7f && c != '%' ? 1 : 3;
    if (cost > kMaxMessage) return absl::StrCat(message.substr(0, end), kCut);
  }
  return std::string(message);
}

std::string DetailsThatFit(const absl::Status& status, const std::string& message) {
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(message);
  google::protobuf::Any info;
  std::vector<google::protobuf::Any> others;
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    google::protobuf::Any detail;
    detail.set_type_url(std::string(type_url));
    detail.set_value(std::string(payload));
    if (detail.Is<google::rpc::ErrorInfo>()) {
      info = std::move(detail);
    } else {
      others.push_back(std::move(detail));
    }
  });
  if (info.ByteSizeLong() + out.ByteSizeLong() > kMaxDetails) {
    google::rpc::ErrorInfo short_info;
    info.UnpackTo(&short_info);
    short_info.clear_metadata();
    info.PackFrom(short_info);
  }
  if (!info.value().empty()) *out.add_details() = info;
  for (google::protobuf::Any& detail : others) {
    google::rpc::PreconditionFailure failure;
    if (detail.UnpackTo(&failure)) {
      while (failure.violations_size() > 1 &&
             out.ByteSizeLong() + failure.ByteSizeLong() > kMaxDetails) {
        failure.mutable_violations()->DeleteSubrange((failure.violations_size() + 1) / 2,
                                                     failure.violations_size() / 2);
      }
      detail.PackFrom(failure);
    }
    if (out.ByteSizeLong() + detail.ByteSizeLong() <= kMaxDetails) {
      *out.add_details() = std::move(detail);
    }
  }
  return out.SerializeAsString();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Cut(status.message());
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      DetailsThatFit(status, message));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (status.error_details().empty()) return out;
  const absl::Status details = ParseStatus(status.error_details());
  // Details that contradict the status did not come from a server that follows google.rpc.
  if (details.code() != out.code()) return out;
  return details;
}

}  // namespace lowerd::rpc
