#include "server/operations_service.h"

#include <gtest/gtest.h>

#include "lowerd/v1/lowering.pb.h"
#include "server/operation_proto.h"
#include "src/base/error.h"

namespace lowerd::server {
namespace {

TEST(OperationFilterTest, UnderstandsEachTermAndAllTogether) {
  const auto filter = ParseOperationFilter("state = QUEUED AND done=false AND error = true");
  ASSERT_TRUE(filter.ok()) << filter.status();
  EXPECT_EQ(filter->state, jobs::State::kQueued);
  EXPECT_EQ(filter->done, false);
  EXPECT_EQ(filter->failed, true);
  const auto all = ParseOperationFilter("  ");
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE(all->state || all->done || all->failed);
}

TEST(OperationFilterTest, NamesTheTermThatItDoesNotUnderstand) {
  for (const char* text :
       {"x", "state = NOSUCH", "done = maybe", "done = true OR error = true", "= true"}) {
    EXPECT_TRUE(HasReason(ParseOperationFilter(text).status(), Reason::kInvalidRequest)) << text;
  }
}

TEST(OperationProtoTest, DoneOperationsCarryTheirResponseOrTheirError) {
  jobs::Operation operation;
  operation.name = "operations/1";
  operation.inputs = {Digest::Of("model")};
  operation.created = operation.updated = absl::FromUnixMillis(1500);
  EXPECT_EQ(OperationToProto(operation).result_case(),
            google::longrunning::Operation::RESULT_NOT_SET);

  operation.progress.state = jobs::State::kDone;
  v1::LowerModelResponse response;
  response.mutable_manifest_digest()->set_hash("x");
  operation.result = response.SerializeAsString();
  v1::LowerModelResponse unpacked;
  ASSERT_TRUE(OperationToProto(operation).response().UnpackTo(&unpacked));
  EXPECT_EQ(unpacked.manifest_digest().hash(), "x");

  operation.error = MakeError(Reason::kModelCorrupt, "damaged");
  const auto failed = OperationToProto(operation);
  EXPECT_EQ(ParseStatus(failed.error().SerializeAsString()), operation.error);
  v1::LowerModelMetadata metadata;
  ASSERT_TRUE(failed.metadata().UnpackTo(&metadata));
  EXPECT_EQ(metadata.state(), v1::LowerModelMetadata::DONE);
  EXPECT_EQ(metadata.model().hash(), Digest::Of("model").hex());
  EXPECT_EQ(metadata.create_time().seconds(), 1);
  EXPECT_EQ(metadata.create_time().nanos(), 500'000'000);
}

}  // namespace
}  // namespace lowerd::server
