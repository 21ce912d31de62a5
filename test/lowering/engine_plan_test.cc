// Selectors, dry runs and descriptions.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// layers.{0,1,2}.{a,b}, all leaves of one class, and `tail`.
std::string Model() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module leaf = NewLeaf(unit);
  torch::jit::Module root = NewModule("Root", unit);
  torch::jit::Module layers = NewModule("Layers", unit);
  const torch::jit::Module pair = NewPair(leaf, Sibling(leaf));
  layers.register_module("0", pair);
  layers.register_module("1", pair.deepcopy());
  layers.register_module("2", pair.deepcopy());
  root.register_module("layers", layers);
  root.register_module("tail", Sibling(leaf));
  root.define(
      "def forward(self, x):\n"
      "    return self.tail.forward(x)\n");
  return Save(root);
}

std::vector<std::string> Selected(const std::string& model, const v1::Target& target) {
  v1::LowerModelRequest request = Request(model, {"tail"});
  const v1::Target by_path = request.targets(0);
  *request.mutable_targets(0) = target;
  request.mutable_targets(0)->set_backend(by_path.backend());
  *request.mutable_targets(0)->mutable_methods() = by_path.methods();
  const auto plan = RunPlan(model, request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> paths;
  for (const v1::PlannedModule& module : plan->modules()) paths.push_back(module.path());
  for (const v1::PlanProblem& problem : plan->problems()) paths.push_back(problem.reason());
  return paths;
}

v1::Target Glob(const std::string& glob) {
  v1::Target target;
  target.set_path_glob(glob);
  return target;
}

v1::Target OfType(const std::string& type) {
  v1::Target target;
  target.set_original_type(type);
  return target;
}

TEST(EngineSelectors, GlobsStayWithinNamesUnlessTheySpan) {
  const std::string model = Model();
  EXPECT_THAT(Selected(model, Glob("layers.*")), ElementsAre("layers.0", "layers.1", "layers.2"));
  EXPECT_THAT(Selected(model, Glob("layers.?.a")),
              ElementsAre("layers.0.a", "layers.1.a", "layers.2.a"));
  EXPECT_THAT(Selected(model, Glob("layers.[02].b")), ElementsAre("layers.0.b", "layers.2.b"));
  EXPECT_THAT(Selected(model, Glob("layers.[!02].b")), ElementsAre("layers.1.b"));
  EXPECT_THAT(Selected(model, Glob("**.a")), ElementsAre("layers.0.a", "layers.1.a", "layers.2.a"));
  EXPECT_THAT(Selected(model, Glob("nothing*")), ElementsAre("MODULE_NOT_FOUND"));
}

TEST(EngineSelectors, TypesSelectAllInstancesWithOrWithoutMangle) {
  const std::string model = Model();
  const auto description = RunInspect(model);
  ASSERT_TRUE(description.ok()) << description.status();
  std::string exact;
  for (const v1::ModuleDescription& module : description->modules()) {
    if (module.path() == "tail") exact = module.type();
  }
  EXPECT_EQ(Selected(model, OfType("__torch__.Leaf")).size(), 7u);
  EXPECT_EQ(Selected(model, OfType(exact)).size(), 7u);
  EXPECT_THAT(Selected(model, OfType("__torch__.Leave")), ElementsAre("MODULE_NOT_FOUND"));
}

TEST(EnginePlan, GivesTheNamesThatLoweringGivesAndWhatStays) {
  const std::string model = Model();
  const v1::LowerModelRequest request = Request(model, {"layers.1", "tail"});
  const auto plan = RunPlan(model, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(plan->problems(), IsEmpty());
  ASSERT_EQ(plan->modules_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(plan->modules(i).lowered_type(), lowered->manifest.lowered_modules(i).lowered_type());
    EXPECT_EQ(plan->modules(i).wrapper_type(), lowered->manifest.lowered_modules(i).wrapper_type());
  }
  EXPECT_EQ(plan->modules(0).parameter_bytes(), 2 * 4 * 4);
  std::map<std::string, std::string> why;
  for (const v1::StayingModule& module : plan->staying_modules()) {
    why[module.path()] = module.why();
  }
  EXPECT_EQ(why.at("layers"), "owns layers.1");
  EXPECT_EQ(why.at("layers.0.a"), "is no target");
  EXPECT_EQ(why.count("layers.1.a"), 0u);
  EXPECT_THAT(plan->remaining_operators(), IsEmpty());
}

TEST(EngineInspect, DescribesTreeMethodsParametersAndOperators) {
  const std::string model = Model();
  const auto description = RunInspect(model);
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->modules_size(), 12);
  EXPECT_EQ(description->modules(0).path(), "");
  EXPECT_EQ(description->modules(0).type(), "__torch__.Root");
  EXPECT_EQ(description->parameter_count(), 7 * 4);
  EXPECT_EQ(description->parameter_bytes(), 7 * 4 * 4);
  const v1::ModuleDescription& leaf = description->modules(3);
  EXPECT_EQ(leaf.path(), "layers.0.a");
  ASSERT_EQ(leaf.methods_size(), 1);
  EXPECT_EQ(leaf.methods(0).name(), "forward");
  EXPECT_EQ(leaf.parameter_bytes(), 16);
  EXPECT_EQ(leaf.operators_size(), 3);
}

TEST(EngineInspect, TellsWhatWasLoweredBefore) {
  const std::string model = Model();
  const auto lowered = RunLower(model, Request(model, {"tail"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const auto description = RunInspect(lowered->artifacts.at(v1::TORCHSCRIPT));
  ASSERT_TRUE(description.ok()) << description.status();
  std::map<std::string, std::string> backends;
  for (const v1::ModuleDescription& module : description->modules()) {
    backends[module.path()] = module.lowered_to_backend();
  }
  EXPECT_EQ(backends.at("tail"), "reference");
  EXPECT_EQ(backends.at("layers.0"), "");
}

}  // namespace
}  // namespace lowerd::lowering::testing
