#include "server/policy.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

constexpr char kPolicy[] = R"({
  "name": "farm",
  "deny_rules": [
    {"name": "no dumps", "request": {"paths": ["*/ListTypeNames"]},
     "source": {"principals": ["dev-*"]}},
    {"name": "not from tests", "request": {"headers": [{"key": "X-From", "values": ["test*"]}]}}
  ],
  "allow_rules": [
    {"name": "farm", "source": {"principals": ["farm", "*.farm.example"]}},
    {"name": "developers", "source": {"principals": ["dev-*"]},
     "request": {"paths": ["/lowerd.v1.LoweringService/PlanLowering", "/lowerd.v1.TypeNames/*"]}},
    {"name": "known", "source": {"principals": ["*"]}, "request": {"paths": ["/any/Known"]}},
    {"name": "probes", "request": {"paths": ["/grpc.health.v1.Health/*"]}},
    {"name": "two headers", "request": {"paths": ["/two/Headers"], "headers": [
      {"key": "a", "values": ["1", "2"]}, {"key": "b", "values": ["*"]}]}}
  ]
})";

TEST(PolicyTest, EachRuleBothWays) {
  const auto policy = Policy::Parse(kPolicy);
  ASSERT_TRUE(policy.ok()) << policy.status();
  struct Case {
    std::vector<std::string> who;
    const char* path;
    std::vector<Policy::Header> headers;
    bool allowed;
  };
  const Case cases[] = {
      {{"farm"}, "/lowerd.v1.LoweringService/LowerModel", {}, true},
      {{"a.farm.example"}, "/lowerd.v1.TypeNames/ListTypeNames", {}, true},
      {{"other", "a.farm.example"}, "/x/Y", {}, true},
      {{"farmer"}, "/lowerd.v1.LoweringService/LowerModel", {}, false},
      {{"farm.example"}, "/x/Y", {}, false},
      {{}, "/x/Y", {}, false},
      {{"dev-a"}, "/lowerd.v1.LoweringService/PlanLowering", {}, true},
      {{"dev-a"}, "/lowerd.v1.LoweringService/LowerModel", {}, false},
      {{"dev-a"}, "/lowerd.v1.TypeNames/ResolveTypeName", {}, true},
      {{"dev-a"}, "/lowerd.v1.TypeNames/ListTypeNames", {}, false},
      {{"dev"}, "/lowerd.v1.TypeNames/ResolveTypeName", {}, false},
      {{"farm"}, "/x/Y", {{"x-from", "test 7"}}, false},
      {{"farm"}, "/x/Y", {{"x-from", "prod"}}, true},
      {{"anybody"}, "/any/Known", {}, true},
      {{}, "/any/Known", {}, false},
      {{}, "/grpc.health.v1.Health/Check", {}, true},
      {{}, "/grpc.health.v1.Healthy/Check", {}, false},
      {{}, "/two/Headers", {{"a", "2"}, {"b", "x"}}, true},
      {{}, "/two/Headers", {{"a", "2"}}, false},
      {{}, "/two/Headers", {{"a", "3"}, {"b", "x"}}, false},
      {{}, "/two/Headers", {{"a", "1"}, {"b", ""}}, false},
  };
  for (const Case& c : cases) {
    const absl::Status status = policy->Check({c.who, c.path, c.headers});
    EXPECT_EQ(status.ok(), c.allowed) << c.path << " " << status;
    if (!c.allowed) {
      EXPECT_TRUE(HasReason(status, Reason::kNotAllowed)) << status;
    }
  }
  EXPECT_NE(policy->Check({{"dev-a"}, "/lowerd.v1.TypeNames/ListTypeNames", {}})
                .message()
                .find("no dumps"),
            absl::string_view::npos);
}

TEST(PolicyTest, WhatIsNotA43IsRefusedAndNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "JSON"},
      {"[]", "object"},
      {R"({"allow_rules": [{"name": "a"}]})", "name"},
      {R"({"name": "p"})", "allow_rules"},
      {R"({"name": "p", "allow_rules": []})", "allow_rules"},
      {R"({"name": "p", "allow_rules": [{}]})", "allow_rules[0]"},
      {R"({"name": "p", "allow_rules": [{"name": "a", "sauce": {}}]})", "sauce"},
      {R"({"name": "p", "allow_rules": [{"name": "a", "source": {"principal": ["x"]}}]})",
       "principal"},
      {R"({"name": "p", "allow_rules": [{"name": "a", "source": {"principals": "x"}}]})", "list"},
      {R"({"name": "p", "allow_rules": [{"name": "a", "request": {"paths": [1]}}]})", "string"},
      {R"({"name": "p", "allow_rules": [{"name": "a", "request": {"headers": [{"key": "x"}]}}]})",
       "values"},
      {R"({"name": "p", "allow_rules": [{"name": "a", "request": {"headers":
          [{"key": ":path", "values": ["x"]}]}}]})",
       ":path"},
  };
  for (const auto& [text, expected] : cases) {
    const absl::Status status = Policy::Parse(text).status();
    EXPECT_TRUE(HasReason(status, Reason::kInvalidRequest)) << text;
    EXPECT_NE(status.message().find(expected), absl::string_view::npos) << text << ": " << status;
  }
}

}  // namespace
}  // namespace lowerd::server
