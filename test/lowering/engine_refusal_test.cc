// Requests that cannot be right for a model are refused with the reason, the place and a way out.

#include <ostream>

#include "absl/strings/str_split.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Refusal {
  const char* name;
  // Separated by commas.
  const char* targets;
  Reason reason;
  // What the message must hold, separated by bars.
  const char* in_message;
  // Separated by commas.
  const char* methods;
};

std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

// The owner of reads.a reads its weight, that of calls.a calls its helper; fine.a and fine.b are
// only called forward.
torch::jit::Module Model() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module leaf = NewLeaf(unit);
  leaf.define("def helper(self, x):\n    return x * self.weight\n");
  torch::jit::Module root = NewModule("Root", unit);

  torch::jit::Module reads = NewModule("Reads", unit);
  reads.register_module("a", leaf);
  reads.define("def forward(self, x):\n    return self.a.forward(x) + self.a.weight\n");
  root.register_module("reads", reads);

  torch::jit::Module calls = NewModule("Calls", unit);
  calls.register_module("a", Sibling(leaf));
  calls.define("def forward(self, x):\n    return self.a.forward(x) + self.a.helper(x)\n");
  root.register_module("calls", calls);

  torch::jit::Module reads_deep = NewModule("ReadsDeep", unit);
  reads_deep.register_module("inner", calls.deepcopy());
  reads_deep.define(
      "def forward(self, x):\n"
      "    if bool(x.sum() > 0):\n        x = x + self.inner.a.weight\n"
      "    return self.inner.forward(x)\n");
  root.register_module("reads_deep", reads_deep);

  torch::jit::Module fine = NewPair(Sibling(leaf), Sibling(leaf));
  root.register_module("fine", fine);
  root.register_attribute("absent", c10::NoneType::get(), c10::IValue());
  root.register_parameter("scale", at::rand({4}), /*is_buffer=*/false);
  root.register_attribute("count", c10::IntType::get(), 3);
  root.define(
      "def forward(self, x):\n"
      "    return self.reads.forward(x) + self.calls.forward(x) + self.fine.forward(x) + "
      "self.reads_deep.forward(x)\n");
  return root;
}

constexpr Refusal kRefusals[] = {
    {"PathNotFound", "fine.aa", Reason::kModuleNotFound, "fine.aa|did you mean fine.a", "forward"},
    {"EmptySegment", "fine..a", Reason::kModuleNotFound, "fine..a", "forward"},
    {"TrailingDot", "fine.", Reason::kModuleNotFound, "fine.", "forward"},
    {"PathToParameter", "fine.a.weight", Reason::kModuleNotFound, "a parameter or buffer",
     "forward"},
    {"PathToNumber", "count", Reason::kModuleNotFound, "of type int", "forward"},
    {"PathThroughParameter", "scale.x", Reason::kModuleNotFound, "scale", "forward"},
    {"ModuleIsNone", "absent", Reason::kModuleIsNone, "absent", "forward"},
    {"BelowNone", "absent.x", Reason::kModuleIsNone, "absent", "forward"},
    {"MethodNotFound", "fine.a", Reason::kMethodNotFound, "encode|forward, helper", "encode"},
    {"TargetInTarget", "fine,fine.b", Reason::kOverlappingTargets, "fine.b|\"fine\"", "forward"},
    {"RootAndTarget", ",fine.b", Reason::kOverlappingTargets, "fine.b|the root", "forward"},
    {"OwnerReadsAttribute", "reads.a", Reason::kAttributeAccess,
     "reads.a|weight|return self.a.forward(x) + self.a.weight", "forward"},
    {"OwnerCallsAnotherMethod", "calls.a", Reason::kAttributeAccess,
     "calls.a|helper|return self.a.forward(x) + self.a.helper(x)", "forward"},
    {"GrandparentReadsAttribute", "reads_deep.inner.a", Reason::kAttributeAccess,
     "reads_deep.inner.a|weight|self.inner.a.weight", "forward,helper"},
    {"GrandparentReadsThroughTarget", "reads_deep.inner", Reason::kAttributeAccess,
     "reads_deep.inner|reads its attribute a", "forward"},
};

class EngineRefusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(EngineRefusals, IsRefusedWithReasonAndPlace) {
  const std::string model = Save(Model());
  FakeHost host;
  const auto lowered = RunLower(model,
                                Request(model, absl::StrSplit(GetParam().targets, ','), "reference",
                                        absl::StrSplit(GetParam().methods, ',')),
                                host);
  ASSERT_FALSE(lowered.ok());
  EXPECT_EQ(ReasonOf(lowered.status()), ReasonName(GetParam().reason)) << lowered.status();
  const std::string message(lowered.status().message());
  for (const absl::string_view part : absl::StrSplit(GetParam().in_message, '|')) {
    EXPECT_THAT(message, HasSubstr(std::string(part)));
  }
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_TRUE(host.claims().empty()) << "a refused request claims no names";
}

INSTANTIATE_TEST_SUITE_P(All, EngineRefusals, ::testing::ValuesIn(kRefusals),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(EngineRefusal, AllProblemsAreFoundAtOnce) {
  const std::string model = Save(Model());
  const auto plan =
      RunPlan(model, Request(model, {"nowhere", "absent", "reads.a", "calls.a", "fine"}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> found;
  for (const v1::PlanProblem& problem : plan->problems()) {
    found.push_back(problem.reason() + " " + problem.path());
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(
                         "MODULE_NOT_FOUND nowhere", "MODULE_IS_NONE absent",
                         "ATTRIBUTE_ACCESS reads.a", "ATTRIBUTE_ACCESS calls.a"));
  const auto lowered = RunLower(model, Request(model, {"nowhere", "absent"}));
  EXPECT_THAT(std::string(lowered.status().message()), HasSubstr("1 more problem"));
}

TEST(EngineRefusal, LoweredModulesAreNotLoweredAgain) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("p", NewPair(NewLeaf(unit), NewLeaf(unit)));
  root.define("def forward(self, x):\n    return self.p.forward(x)\n");
  const std::string model = Save(root);
  const auto first = RunLower(model, Request(model, {"p.a"}));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string& half = first->artifacts.at(v1::TORCHSCRIPT);
  for (const std::string path : {"p.a", "p.a.__loweredModule__", "p", ""}) {
    const auto again = RunLower(half, Request(half, {path}));
    EXPECT_EQ(ReasonOf(again.status()), "ALREADY_LOWERED") << path << ": " << again.status();
  }
}

TEST(EngineRefusal, RequireFullNamesTheOperatorsThatStay) {
  const std::string model = Save(Model());
  v1::LowerModelRequest request = Request(model, {"fine"});
  request.set_require_full(true);
  const auto lowered = RunLower(model, request);
  EXPECT_EQ(ReasonOf(lowered.status()), "NOT_FULLY_LOWERED") << lowered.status();
  EXPECT_THAT(std::string(lowered.status().message()), HasSubstr("aten::tanh x3"));
}

TEST(EngineRefusal, BytesThatAreNoModel) {
  for (const std::string model : {"", "hello", "PK\3\4"}) {
    const auto lowered = RunLower(model, Request(model, {""}));
    EXPECT_TRUE(HasReason(lowered.status(), Reason::kModelNotTorchscript) ||
                HasReason(lowered.status(), Reason::kModelCorrupt))
        << lowered.status();
  }
}

}  // namespace
}  // namespace lowerd::lowering::testing
