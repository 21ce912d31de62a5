#include "server/trace_context.h"

#include <gtest/gtest.h>

#include "build/bazel/remote/execution/v2/remote_execution.pb.h"

namespace lowerd::server {
namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

constexpr char kId[] = "4bf92f3577b34da6a3ce929d0e0e4736";

std::string TraceIdOf(const std::string& traceparent) {
  return TraceContextOf(Metadata{{"traceparent", traceparent}}).trace_id;
}

TEST(TraceContextTest, TraceIdIsTakenFromWellFormedTraceparentsOnly) {
  EXPECT_EQ(TraceIdOf("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), kId);
  // A version to come may say more.
  EXPECT_EQ(TraceIdOf("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"), kId);
  for (const char* bad : {"", "x", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                          "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                          "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                          "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                          "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                          "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01"}) {
    EXPECT_EQ(TraceIdOf(bad), "") << bad;
  }
}

TEST(TraceContextTest, ReadsRequestMetadataAndCleansItsFields) {
  build::bazel::remote::execution::v2::RequestMetadata request;
  request.mutable_tool_details()->set_tool_name("bazel");
  request.mutable_tool_details()->set_tool_version("7.1\n");
  request.set_tool_invocation_id(std::string(1000, 'i'));
  request.set_action_id("action");
  const std::string bytes = request.SerializeAsString();
  const TraceContext trace =
      TraceContextOf(Metadata{{"build.bazel.remote.execution.v2.requestmetadata-bin", bytes}});
  EXPECT_EQ(trace.tool, "bazel/7.1?");
  EXPECT_EQ(trace.invocation, std::string(128, 'i'));
  EXPECT_EQ(trace.action, "action");
}

TEST(TraceContextTest, GarbageGivesNothing) {
  const TraceContext trace = TraceContextOf(
      Metadata{{"build.bazel.remote.execution.v2.requestmetadata-bin", "\xff\xff\xff"}});
  EXPECT_EQ(trace.tool + trace.invocation + trace.action + trace.trace_id, "");
}

}  // namespace
}  // namespace lowerd::server
