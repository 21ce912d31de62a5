#include "src/base/error.h"

#include <cerrno>
#include <set>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include <gtest/gtest.h>

#include "lowerd/v1/errors.pb.h"

namespace lowerd {
namespace {

std::vector<Reason> AllReasons() {
  std::vector<Reason> all;
  for (int i = 0; i <= static_cast<int>(Reason::kNotAllowed); ++i) {
    all.push_back(static_cast<Reason>(i));
  }
  return all;
}

TEST(ErrorTest, EveryReasonIsInThePublicEnumAndTheOtherWayRound) {
  std::set<std::string> ours, theirs;
  for (Reason reason : AllReasons()) ours.insert(std::string(ReasonName(reason)));
  const auto* descriptor = v1::ErrorReason_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    if (descriptor->value(i)->number() != 0) theirs.insert(descriptor->value(i)->name());
  }
  EXPECT_EQ(ours, theirs);
}

TEST(ErrorTest, EveryReasonSurvivesTheWireWithItsCode) {
  for (Reason reason : AllReasons()) {
    const absl::Status before = MakeError(reason, "what\nwhere", {{"path", "a.b"}});
    const absl::Status after = ParseStatus(SerializeStatus(before));
    EXPECT_EQ(after, before);
    EXPECT_EQ(after.code(), ReasonCode(reason));
    EXPECT_TRUE(HasReason(after, reason));
    EXPECT_EQ(after.message(), "what where");
  }
}

TEST(ErrorTest, StatusCarriesExactlyOneErrorInfo) {
  absl::Status status = MissingBlobsError({Digest::Of("a"), Digest::Of("b")});
  SetRetryDelay(status, absl::Milliseconds(1500));
  google::rpc::Status wire;
  ASSERT_TRUE(wire.ParseFromString(SerializeStatus(status)));
  int infos = 0;
  google::rpc::PreconditionFailure failure;
  for (const auto& detail : wire.details()) {
    infos += detail.Is<google::rpc::ErrorInfo>();
    if (detail.Is<google::rpc::PreconditionFailure>()) detail.UnpackTo(&failure);
  }
  EXPECT_EQ(infos, 1);
  ASSERT_EQ(failure.violations_size(), 2);
  EXPECT_EQ(failure.violations(1).type(), "MISSING");
  EXPECT_EQ(failure.violations(1).subject(), "blobs/" + Digest::Of("b").ToString());
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(1500));
}

TEST(ErrorTest, EveryCodeGetsAReasonOfTheSameCode) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status = WithReason(absl::Status(static_cast<absl::StatusCode>(code), "x"));
    EXPECT_NE(ReasonOf(status), "") << code;
  }
  EXPECT_TRUE(WithReason(absl::OkStatus()).ok());
  const absl::Status known = MakeError(Reason::kModelCorrupt, "x");
  EXPECT_EQ(WithReason(known), known);
}

TEST(ErrorTest, HostileBytesAreAnErrorNotACrash) {
  EXPECT_TRUE(HasReason(ParseStatus("\xff\xff\xff"), Reason::kInternalError));
  google::rpc::Status odd;
  odd.set_code(999);
  EXPECT_EQ(ParseStatus(odd.SerializeAsString()).code(), absl::StatusCode::kUnknown);
}

TEST(ErrorTest, MessagesThatQuoteHostileBytesStillTravel) {
  for (const std::string& text :
       {std::string("\xff\xfe"), std::string("cut \xc3"), std::string("\xed\xa0\x80"),
        std::string("\xc0\xaf"), std::string("\xf4\x90\x80\x80"), std::string("a\0b", 3)}) {
    const absl::Status before = MakeError(Reason::kModelCorrupt, text, {{text, text}});
    EXPECT_EQ(ParseStatus(SerializeStatus(before)), before);
    google::rpc::ErrorInfo info;
    const auto payload = before.GetPayload("type.googleapis.com/google.rpc.ErrorInfo");
    ASSERT_TRUE(payload.has_value());
    EXPECT_TRUE(info.ParseFromString(std::string(*payload)));
  }
  EXPECT_EQ(MakeError(Reason::kModelCorrupt, "\u00dcnit \U0001f600").message(),
            "\u00dcnit \U0001f600");
}

TEST(ErrorTest, FullDiskIsStoreFull) {
  EXPECT_TRUE(HasReason(ErrnoError(ENOSPC, "x"), Reason::kStoreFull));
  EXPECT_TRUE(HasReason(ErrnoError(EIO, "x"), Reason::kInternalError));
}

}  // namespace
}  // namespace lowerd
