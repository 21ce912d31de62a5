// Names of lowered classes, and whose class changes.

#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/type_name.h"
#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

torch::jit::Module TwoLeaves() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module leaf = NewLeaf(unit);
  return NewPair(leaf, Sibling(leaf));
}

const std::vector<c10::IValue> kInput = {at::linspace(-1, 1, 4)};

TEST(EngineNames, TwoInstancesOfOneClassGetTwoNamesThatAgreeInAllFormats) {
  const std::string model = Save(TwoLeaves());
  const auto lowered = RunLower(model, Request(model, {"a", "b"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ASSERT_EQ(lowered->manifest.lowered_modules_size(), 2);
  std::set<std::string> names;
  for (const v1::LoweredModule& module : lowered->manifest.lowered_modules()) {
    EXPECT_EQ(Demangle(module.lowered_type()), "torch.jit.LoweredModule.reference.__torch__.Leaf");
    EXPECT_EQ(module.wrapper_type(), WrapperNameOf(module.lowered_type()));
    names.insert(module.lowered_type());
    for (const v1::Type& type : lowered->manifest.types()) {
      if (type.name() != module.lowered_type()) continue;
      EXPECT_EQ(type.kind(), v1::Type::LOWERED_MODULE);
      EXPECT_THAT(type.formats(), ElementsAre(v1::TORCHSCRIPT, v1::LITE_BYTECODE, v1::FLATBUFFER));
    }
    EXPECT_EQ(TypesByPath(lowered->artifacts.at(v1::TORCHSCRIPT)).at(module.path()),
              module.wrapper_type());
  }
  EXPECT_EQ(names.size(), 2u);
  ExpectSameOutputs(model, *lowered, kInput);
}

TEST(EngineNames, OneOfTwoInstancesLeavesTheOtherItsClass) {
  const std::string model = Save(TwoLeaves());
  for (const std::string target : {"a", "b"}) {
    const auto lowered = RunLower(model, Request(model, {target}));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    const auto types = TypesByPath(lowered->artifacts.at(v1::TORCHSCRIPT));
    EXPECT_EQ(Demangle(types.at(target == "a" ? "b" : "a")), "__torch__.Leaf");
    EXPECT_THAT(types.at(target), StartsWith("torch.jit.LoweredWrapper.reference."));
    ExpectSameOutputs(model, *lowered, kInput);
  }
}

TEST(EngineNames, OwnersOfOneClassMayHaveDifferentChildrenLowered) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module leaf = NewLeaf(unit);
  const torch::jit::Module pair = NewPair(leaf, Sibling(leaf));
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("p", pair);
  root.register_module("q", pair.deepcopy());
  root.define("def forward(self, x):\n    return self.p.forward(x) + self.q.forward(x)\n");
  const std::string model = Save(root);
  const std::vector<std::vector<std::string>> subsets = {
      {"p.a"}, {"q.b"}, {"p.a", "q.b"}, {"p.a", "p.b"}, {"p", "q.a"}, {"p.a", "p.b", "q.a", "q.b"}};
  for (const std::vector<std::string>& subset : subsets) {
    const auto lowered = RunLower(model, Request(model, subset));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    ExpectSameOutputs(model, *lowered, kInput);
  }
}

TEST(EngineNames, OneObjectUnderTwoPathsIsLoweredOnceAndStaysOne) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module leaf = NewLeaf(unit);
  const std::string model = Save(NewPair(leaf, leaf));
  for (const std::vector<std::string>& paths :
       std::vector<std::vector<std::string>>{{"a"}, {"b"}, {"a", "b"}}) {
    const auto lowered = RunLower(model, Request(model, paths));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    ASSERT_EQ(lowered->manifest.lowered_modules_size(), 1);
    EXPECT_EQ(lowered->manifest.lowered_modules(0).path(), "a");
    EXPECT_THAT(lowered->manifest.lowered_modules(0).aliases(), ElementsAre("b"));
    const torch::jit::Module loaded = Load(lowered->artifacts.at(v1::TORCHSCRIPT));
    EXPECT_EQ(loaded.attr("a").toObject(), loaded.attr("b").toObject());
    ExpectSameOutputs(model, *lowered, kInput);
  }
}

TEST(EngineNames, AModelThatHoldsLoweredModulesKeepsTheirNames) {
  const std::string model = Save(TwoLeaves());
  const auto first = RunLower(model, Request(model, {"a"}));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string& half = first->artifacts.at(v1::TORCHSCRIPT);
  const auto second = RunLower(half, Request(half, {"b"}));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(TypesByPath(second->artifacts.at(v1::TORCHSCRIPT)).at("a"),
            first->manifest.lowered_modules(0).wrapper_type());
  ExpectSameOutputs(model, *second, kInput);
}

TEST(EngineNames, IdentityTellsModelPathBackendAndCompileSpecApart) {
  const std::string model = Save(TwoLeaves());
  const std::string other = Save(TwoLeaves());
  auto identities = [](const std::string& bytes, const v1::LowerModelRequest& request) {
    FakeHost host;
    EXPECT_TRUE(RunLower(bytes, request, host).ok());
    std::vector<std::string> out;
    for (const auto& claim : host.claims().at(0).claims()) out.push_back(claim.identity());
    return out;
  };
  const v1::LowerModelRequest both = Request(model, {"a", "b"});
  v1::LowerModelRequest other_spec = both;
  other_spec.mutable_targets(0)->mutable_methods(0)->mutable_compile_spec()->set_int_(1);

  const std::vector<std::string> base = identities(model, both);
  EXPECT_EQ(identities(model, both), base);
  EXPECT_EQ(identities(model, Request(model, {"b", "a"})), base);
  EXPECT_EQ(identities(model, Request(model, {"a"}))[0], base[0]);

  std::set<std::string> all(base.begin(), base.end());
  all.insert(identities(other, Request(other, {"a"}))[0]);
  all.insert(identities(model, Request(model, {"a"}, "test_unavailable"))[0]);
  all.insert(identities(model, other_spec)[0]);
  EXPECT_EQ(all.size(), 5u);
}

}  // namespace
}  // namespace lowerd::lowering::testing
