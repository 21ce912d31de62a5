#include "src/rpc/grpc_status.h"

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

}  // namespace
}  // namespace lowerd::rpc
