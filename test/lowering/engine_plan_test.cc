// Selectors, dry runs and descriptions.

#include <limits>

#include "absl/strings/str_cat.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>

#include "src/lowering/path_glob.h"
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

// Lets a method call the functions of a compilation unit.
class FunctionsOf final : public torch::jit::Resolver {
 public:
  explicit FunctionsOf(torch::jit::CompilationUnit& unit) : unit_(unit) {}
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name, torch::jit::GraphFunction& caller,
      const torch::jit::SourceRange& range) override {
    torch::jit::Function* function = unit_.find_function(c10::QualifiedName("__torch__", name));
    if (function != nullptr) return std::make_shared<torch::jit::FunctionValue>(function);
    return torch::jit::nativeResolver()->resolveValue(name, caller, range);
  }

 private:
  torch::jit::CompilationUnit& unit_;
};

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

TEST(EngineSelectors, GlobsOfManyStarsTakeNoLonger) {
  std::string glob;
  for (int i = 0; i < 40; ++i) glob += "**a*";
  EXPECT_FALSE(GlobMatches(glob + "b", std::string(1000, 'a')));
  EXPECT_TRUE(GlobMatches(glob, std::string(1000, 'a')));
}

TEST(EngineSelectors, GlobsMatchWholePaths) {
  EXPECT_TRUE(GlobMatches("**", ""));
  EXPECT_TRUE(GlobMatches("", ""));
  EXPECT_FALSE(GlobMatches("", "a"));
  EXPECT_FALSE(GlobMatches("a", "ab"));
  EXPECT_FALSE(GlobMatches("?", "."));
  EXPECT_FALSE(GlobMatches("a*b", "a.b"));
  EXPECT_TRUE(GlobMatches("a**b", "a.b"));
  EXPECT_TRUE(GlobMatches("a**b", "ab"));
  EXPECT_TRUE(GlobMatches("***", "a.b"));
  EXPECT_TRUE(GlobMatches("a[]b]", "a]"));
  EXPECT_FALSE(GlobMatches("a[!x]b", "a.b"));
  EXPECT_TRUE(GlobMatches("a[", "a["));
}

// Each layer holds the next one twice, so that the paths double with each. (More layers are too
// much for PyTorch itself: its alias analysis walks through all paths, and its flatbuffer writer
// through all pairs of them.)
TEST(EngineSelectors, SubmodulesUnderThousandsOfPaths) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module module = NewLeaf(unit);
  for (int i = 0; i < 10; ++i) {
    const torch::jit::Module inner = module;
    module = NewModule("Twice" + std::to_string(i), unit);
    module.register_module("a", inner);
    module.register_module("b", inner);
    module.define("def forward(self, x):\n    return self.a.forward(x)\n");
  }
  const std::string model = Save(module);
  const auto plan = RunPlan(model, Request(model, {"a"}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->modules_size(), 1);
  EXPECT_THAT(plan->modules(0).aliases(), ElementsAre("b"));
  EXPECT_EQ(plan->modules(0).parameter_bytes(), 4 * 4);
  v1::LowerModelRequest request = Request(model, {"a.b.a"});
  request.clear_formats();
  request.add_formats(v1::TORCHSCRIPT);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
}

// Each calls the one before it twice, so that the calls double with each.
TEST(EnginePlan, FunctionsThatCallEachOtherAreWalkedThroughOnce) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  std::string functions = "def f0(x):\n    return torch.tanh(x)\n";
  for (int i = 1; i < 70; ++i) {
    functions += absl::StrCat("def f", i, "(x):\n    if bool(x.sum() > 100):\n        return f",
                              i - 1, "(f", i - 1, "(x))\n    return x\n");
  }
  unit->define(c10::QualifiedName("__torch__"), functions, torch::jit::nativeResolver(), nullptr);
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", NewLeaf(unit));
  root.define("def forward(self, x):\n    return f69(self.a.forward(x))\n",
              std::make_shared<FunctionsOf>(*unit));
  const std::string model = Save(root);
  const auto plan = RunPlan(model, Request(model, {"a"}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  int64_t sums = 0;
  for (const v1::OperatorCount& entry : plan->remaining_operators()) {
    if (entry.name() == "aten::sum") sums = entry.count();
  }
  EXPECT_EQ(sums, std::numeric_limits<int64_t>::max());
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
