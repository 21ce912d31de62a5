// Forward hooks, and owners that are used as values.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include "src/base/error.h"
#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

// A hook as PyTorch's Python front end makes it: a function of the class that owners call.
torch::jit::Function* NewHook(torch::jit::Module& module, const std::string& name,
                              const std::string& expression) {
  module.define("def " + name + "(self, input: Tuple[Tensor], output: Tensor) -> Tensor:\n" +
                "    return " + expression + "\n");
  torch::jit::Function* hook = module.type()->findMethod(name);
  module.type()->unsafeRemoveMethod(name);
  module.type()->addForwardHook(hook);
  return hook;
}

// Root: hook(a(x)) with the hook of a's class, as tracing through __call__ writes it.
torch::jit::Module CallingHook(const torch::jit::Module& a, torch::jit::Function* hook) {
  torch::jit::Module root = NewModule("Root", a._ivalue()->compilation_unit());
  root.register_module("a", a);
  root.define("def forward(self, x):\n    return self.a.forward(x)\n");
  const auto graph = torch::jit::toGraphFunction(root.type()->getMethod("forward")).graph();
  torch::jit::Node* call = graph->outputs()[0]->node();
  const torch::jit::WithInsertPoint here(graph->return_node());
  torch::jit::Value* input = graph->insertNode(graph->createTuple({graph->inputs()[1]}))->output();
  torch::jit::Node* constant = graph->insertNode(graph->create(c10::prim::Constant));
  constant->s_(c10::attr::name, hook->name());
  constant->output()->setType(c10::FunctionType::create(hook));
  torch::jit::Node* run = graph->insertNode(graph->create(
      c10::prim::CallFunction, {constant->output(), call->input(0), input, call->output()}));
  run->output()->setType(c10::TensorType::get());
  graph->return_node()->replaceInput(0, run->output());
  return root;
}

TEST(EngineHooks, AHookThatIgnoresItsModuleMovesToTheLoweredOne) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module leaf = NewLeaf(unit);
  torch::jit::Function* hook = NewHook(leaf, "doubled", "output * 2 + input[0]");
  const std::string model = Save(CallingHook(leaf, hook));
  for (const std::string path : {"a", ""}) {
    const auto lowered = RunLower(model, Request(model, {path}));
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
  }
}

TEST(EngineHooks, AnOwnersHookThatUsesItsModuleMovesToItsNewClass) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module pair = NewPair(NewLeaf(unit), NewLeaf(unit));
  torch::jit::Function* hook = NewHook(pair, "scaled", "output * self.b.weight");
  const std::string model = Save(CallingHook(pair, hook));
  const auto lowered = RunLower(model, Request(model, {"a.a"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
  const auto reads = RunLower(model, Request(model, {"a.b"}));
  EXPECT_TRUE(HasReason(reads.status(), Reason::kAttributeAccess)) << reads.status();
}

TEST(EngineHooks, AHookThatUsesATargetIsRefused) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module leaf = NewLeaf(unit);
  torch::jit::Function* hook = NewHook(leaf, "scaled", "output * self.weight");
  const std::string model = Save(CallingHook(leaf, hook));
  const auto lowered = RunLower(model, Request(model, {"a"}));
  EXPECT_TRUE(HasReason(lowered.status(), Reason::kAttributeAccess)) << lowered.status();
  EXPECT_THAT(std::string(lowered.status().message()), ::testing::HasSubstr("hook scaled"));
}

TEST(EngineHooks, AListOfOwnersIsRefused) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module pair = NewPair(NewLeaf(unit), NewLeaf(unit));
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("p", pair);
  root.register_module("q", pair.deepcopy());
  root.define(
      "def forward(self, x):\n"
      "    for m in [self.p, self.q]:\n        x = m.forward(x)\n"
      "    return x\n");
  const std::string model = Save(root);
  const auto lowered = RunLower(model, Request(model, {"p.a"}));
  EXPECT_TRUE(HasReason(lowered.status(), Reason::kAttributeAccess)) << lowered.status();
}

}  // namespace
}  // namespace lowerd::lowering::testing
