#include "src/rpc/grpc_status.h"

#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::rpc {
namespace {

TEST(GrpcStatusTest, EveryReasonMakesTheRoundTripWithItsDetails) {
  for (int i = 0; i <= static_cast<int>(Reason::kNotAllowed); ++i) {
    absl::Status before = MakeError(static_cast<Reason>(i), "what", {{"path", "a"}});
    SetRetryDelay(before, absl::Seconds(3));
    EXPECT_EQ(FromGrpc(ToGrpc(before)), before);
  }
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(GrpcStatusTest, EveryCodeMakesTheRoundTripWithoutDetails) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status wire(static_cast<grpc::StatusCode>(code), "text");
    const absl::Status status = FromGrpc(wire);
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "text");
    EXPECT_EQ(ReasonOf(status), "");
    EXPECT_EQ(ToGrpc(status).error_code(), wire.error_code());
  }
}

TEST(GrpcStatusTest, DetailsThatContradictTheCodeAreDropped) {
  const std::string details = SerializeStatus(MakeError(Reason::kModelCorrupt, "x"));
  const absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::INTERNAL, "y", details));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(status), "");
}

TEST(GrpcStatusTest, ErrorsOfAnyLengthFitIntoATrailer) {
  std::vector<Digest> missing;
  for (int i = 0; i < 5000; ++i) missing.push_back(Digest::Of(std::to_string(i)));
  const std::string accents(60'000, '\xc3');
  std::string e;
  for (int i = 0; i < 30'000; ++i) e += "\xc3\xa9";
  for (const absl::Status& status :
       {MissingBlobsError(missing), NotFoundError("operation", std::string(100'000, 'x')),
        MakeError(Reason::kModelCorrupt, std::string(100'000, 'x')),
        MakeError(Reason::kModelCorrupt, e, {{"path", e}}), FieldError(e, accents)}) {
    const grpc::Status wire = ToGrpc(status);
    // Percent-encoded and base64.
    EXPECT_LE(wire.error_message().size() + wire.error_details().size() * 4 / 3, 7000u);
    const absl::Status back = FromGrpc(wire);
    EXPECT_EQ(back.code(), status.code());
    EXPECT_EQ(ReasonOf(back), ReasonOf(status)) << status.message().substr(0, 50);
  }
  google::rpc::PreconditionFailure failure;
  const absl::Status back = FromGrpc(ToGrpc(MissingBlobsError(missing)));
  back.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (url.find("PreconditionFailure") != url.npos) failure.ParseFromString(std::string(payload));
  });
  EXPECT_GT(failure.violations_size(), 5);
}

}  // namespace
}  // namespace lowerd::rpc
