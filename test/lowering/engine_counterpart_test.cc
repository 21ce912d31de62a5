// Counterparts of PyTorch's own tests of to_backend and selective lowering (test_backends.py,
// test_backend.cpp): what those expect of lowered modules holds for ours, in every format.

#include <sstream>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/mobile/import.h>
#include <torch/csrc/jit/mobile/module.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/torch.h>

#include "src/base/error.h"
#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Unit = std::shared_ptr<torch::jit::CompilationUnit>;

// Sum and difference by several methods.
torch::jit::Module NewBasic(const Unit& unit) {
  torch::jit::Module basic = NewModule("Basic", unit);
  basic.define(
      "def accum(self, x, h):\n    return x + h\n"
      "def sub_accum(self, x, h):\n    return x - h\n"
      "def forward(self, x, h):\n    return self.accum(x, h), self.sub_accum(x, h)\n");
  return basic;
}

// Class `name` with one method forward(x, h) that gives `expression`.
torch::jit::Module NewBinary(const std::string& name, const std::string& expression,
                             const Unit& unit) {
  torch::jit::Module module = NewModule(name, unit);
  module.define("def forward(self, x, h):\n    return " + expression + "\n");
  return module;
}

// Holds `submodule` and hands on what it gives.
torch::jit::Module NewMiddle(const torch::jit::Module& submodule, const Unit& unit) {
  torch::jit::Module middle = NewModule("Middle", unit);
  middle.register_module("submodule", submodule);
  middle.define("def forward(self, x, h):\n    return self.submodule.forward(x, h)\n");
  return middle;
}

std::vector<c10::IValue> Inputs() { return {torch::rand({5}), torch::rand({5})}; }

std::string SaveLite(const torch::jit::Module& module) {
  std::ostringstream out;
  torch::jit::ExportModule(module, out, {}, /*bytecode_format=*/true);
  return out.str();
}

// The artifact is the same model after it was loaded and saved again, twice, by stock PyTorch: as
// TorchScript, and written anew as bytecode.
void ExpectSameAfterSavingAgain(const std::string& model, const Lowered& lowered,
                                const std::vector<c10::IValue>& inputs,
                                const std::string& method = "forward") {
  const std::string& first = lowered.artifacts.at(v1::TORCHSCRIPT);
  const std::string second = Save(Load(first));
  const std::string third = Save(Load(second));
  EXPECT_EQ(TypesByPath(third), TypesByPath(first));
  Lowered again;
  again.artifacts[v1::TORCHSCRIPT] = third;
  again.artifacts[v1::LITE_BYTECODE] = SaveLite(Load(third));
  ExpectSameOutputs(model, again, inputs, method);
}

// The message of what an artifact throws.
std::string ErrorOf(v1::Format format, const std::string& artifact,
                    const std::vector<c10::IValue>& inputs) {
  try {
    RunArtifact(format, artifact, "forward", inputs);
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << v1::Format_Name(format) << " threw nothing";
  return "";
}

TEST(EngineCounterpart, SeveralMethodsOfTheRootRunAlsoWhenSavedAgainAndKeepTheirSpecs) {
  const std::string model = Save(NewBasic(std::make_shared<torch::jit::CompilationUnit>()));
  const auto lowered =
      RunLower(model, Request(model, {""}, "reference", {"accum", "forward", "sub_accum"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (const char* method : {"accum", "sub_accum", "forward"}) {
    ExpectSameOutputs(model, *lowered, Inputs(), method);
    ExpectSameAfterSavingAgain(model, *lowered, Inputs(), method);
  }
  auto spec_of = [](const torch::jit::Module& root) {
    std::map<std::string, std::string> spec;
    for (const auto& entry :
         root.attr("__loweredModule__").toModule().attr("__method_compile_spec").toGenericDict()) {
      spec[entry.key().toStringRef()] = entry.value().toStringRef();
    }
    return spec;
  };
  const torch::jit::Module loaded = Load(lowered->artifacts.at(v1::TORCHSCRIPT));
  EXPECT_EQ(spec_of(loaded).size(), 3u);
  EXPECT_EQ(spec_of(Load(Save(loaded))), spec_of(loaded));
}

TEST(EngineCounterpart, AModelForAnUnavailableBackendIsSavedAndFailsWhenItIsLoaded) {
  const std::string model = Save(NewBasic(std::make_shared<torch::jit::CompilationUnit>()));
  const auto lowered = RunLower(model, Request(model, {""}, "test_unavailable"));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT([&] { Load(lowered->artifacts.at(v1::TORCHSCRIPT)); },
              ::testing::ThrowsMessage<std::exception>(HasSubstr("Backend is not available")));
}

TEST(EngineCounterpart, ALoweredModuleServesAsASubmodule) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(NewMiddle(NewMiddle(NewBasic(unit), unit), unit));
  const auto lowered = RunLower(model, Request(model, {"submodule.submodule"}, "reference",
                                               {"accum", "forward", "sub_accum"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, Inputs());
  ExpectSameAfterSavingAgain(model, *lowered, Inputs());
}

// Three owners of one class; two of their children are lowered, and the root calls one of these
// past its owner. PyTorch refuses this unless all types are unique.
TEST(EngineCounterpart, SelectiveLoweringRetypesWhoeverUsesALoweredModuleAndNobodyElse) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module basic = NewBasic(unit);
  const torch::jit::Module middle = NewMiddle(basic, unit);
  torch::jit::Module outer = NewModule("Outer", unit);
  for (const char* name : {"sub1", "sub2", "other"}) outer.register_module(name, middle.deepcopy());
  outer.define(
      "def forward(self, x, y):\n"
      "    a, b = self.sub1.submodule.forward(x, y)\n"
      "    c, d = self.sub2.forward(x, y)\n"
      "    e, f = self.other.forward(x, y)\n"
      "    return a + c + e, b + d + f\n");
  const std::string model = Save(outer);
  const auto lowered = RunLower(model, Request(model, {"sub1.submodule", "sub2.submodule"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, Inputs());
  ExpectSameAfterSavingAgain(model, *lowered, Inputs());

  const torch::jit::Module loaded = Load(lowered->artifacts.at(v1::TORCHSCRIPT));
  const std::string kDelegate = "__torch__.torch.classes.__backends__.reference";
  auto graph_of = [](const torch::jit::Module& module) {
    return module.get_method("forward").graph()->toString();
  };
  auto child = [](const torch::jit::Module& module, const std::string& name) {
    return module.attr(name).toModule();
  };
  EXPECT_THAT(graph_of(loaded), AllOf(HasSubstr("LoweredWrapper.reference"), HasSubstr("Outer"),
                                      Not(HasSubstr(kDelegate))));
  for (const char* name : {"sub1", "sub2"}) {
    const torch::jit::Module sub = child(loaded, name);
    EXPECT_THAT(graph_of(sub), AllOf(HasSubstr("LoweredWrapper.reference"), HasSubstr("Middle"),
                                     Not(HasSubstr(kDelegate))));
    EXPECT_THAT(graph_of(child(child(sub, "submodule"), "__loweredModule__")),
                AllOf(HasSubstr("LoweredModule.reference"), HasSubstr(kDelegate)));
  }
  EXPECT_THAT(graph_of(child(loaded, "other")),
              AllOf(HasSubstr("Middle"), HasSubstr("Basic"), Not(HasSubstr("Lowered"))));
  EXPECT_THAT(graph_of(child(child(loaded, "other"), "submodule")), Not(HasSubstr("Lowered")));
}

// A composite of modules for a backend that compiles, which knows additions and subtractions.
torch::jit::Module NewComposite(const torch::jit::Module& first, const torch::jit::Module& second,
                                const Unit& unit) {
  torch::jit::Module composite = NewModule("Composite", unit);
  composite.register_module("first", first);
  composite.register_module("second", second);
  composite.define(
      "def forward(self, x, h):\n"
      "    return self.first.forward(x, h) * 2, self.second.forward(x, h)\n");
  return composite;
}

TEST(EngineCounterpart, ACompositeOfTwoClassesForACompiler) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(
      NewComposite(NewBinary("Sum", "x + h", unit), NewBinary("Difference", "x - h", unit), unit));
  const auto lowered = RunLower(model, Request(model, {"first", "second"}, "test_compiler"));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, Inputs());
  ExpectSameAfterSavingAgain(model, *lowered, Inputs());
}

// What this project began with: https://github.com/pytorch/pytorch/issues/59921.
TEST(EngineCounterpart, ACompositeOfOneClassForACompiler) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model =
      Save(NewComposite(NewBinary("Same", "x + h", unit), NewBinary("Same", "x - h", unit), unit));
  const auto lowered = RunLower(model, Request(model, {"first", "second"}, "test_compiler"));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, Inputs());
  ExpectSameAfterSavingAgain(model, *lowered, Inputs());
}

// What a lowered model is given afterwards stays through saving, beside what it was.
TEST(EngineCounterpart, AttributesAddedToALoweredModelSurviveSaving) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(NewMiddle(NewBasic(unit), unit));
  const auto lowered = RunLower(model, Request(model, {"submodule"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  torch::jit::Module loaded = Load(lowered->artifacts.at(v1::TORCHSCRIPT));
  loaded.register_attribute("version", c10::IntType::get(), 17);
  torch::jit::Module wrapper = loaded.attr("submodule").toModule();
  wrapper.register_attribute("note", c10::StringType::get(), std::string("kept"));
  loaded.define(
      "def doubled(self, x, h):\n    a, b = self.submodule.forward(x, h)\n    return a + a\n");
  const std::string again = Save(loaded);
  const torch::jit::Module reloaded = Load(again);
  EXPECT_EQ(reloaded.attr("version").toInt(), 17);
  EXPECT_EQ(reloaded.attr("submodule").toModule().attr("note").toStringRef(), "kept");
  const std::vector<c10::IValue> inputs = Inputs();
  for (const auto& [format, file] : std::map<v1::Format, std::string>{
           {v1::TORCHSCRIPT, again}, {v1::LITE_BYTECODE, SaveLite(reloaded)}}) {
    EXPECT_TRUE(torch::allclose(RunArtifact(format, file, "doubled", inputs).toTensor(),
                                (inputs[0].toTensor() + inputs[1].toTensor()) * 2))
        << v1::Format_Name(format);
  }
}

// PyTorch 1.8 wrote such names, and no wrapper (pytorch#61007).
TEST(EngineCounterpart, AModuleOfTheOlderLayoutCountsAsLowered) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module old(c10::QualifiedName("torch.jit.reference.LoweredModule.__torch__.Old"),
                         unit);
  old.register_attribute("training", c10::BoolType::get(), false);
  old.define("def forward(self, x, h):\n    return x + h\n");
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("old", old);
  root.register_module("other", NewBinary("Other", "x - h", unit));
  root.define(
      "def forward(self, x, h):\n    return self.old.forward(x, h), self.other.forward(x, h)\n");
  const std::string model = Save(root);
  const auto description = RunInspect(model);
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->modules(1).path(), "old");
  EXPECT_EQ(description->modules(1).lowered_to_backend(), "reference");
  for (const char* path : {"old", ""}) {
    const auto again = RunLower(model, Request(model, {path}));
    EXPECT_TRUE(HasReason(again.status(), Reason::kAlreadyLowered)) << again.status();
  }
}

// Shapes that cannot be added fail inside of the backend; debug handles tell where that was.
const std::vector<c10::IValue> kBadInputs = {torch::rand({2, 4}), torch::rand({13, 9})};

TEST(EngineCounterpart, AnErrorShowsTheHierarchyOfTwoLevels) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module inner = NewBinary("Inner", "x + h", unit);
  torch::jit::Module outer = NewModule("Outer", unit);
  outer.register_module("inner0", inner);
  outer.define("def forward(self, x, h):\n    return self.inner0.forward(x, h) - h\n");
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("outer0", outer);
  root.define("def forward(self, x, h):\n    return self.outer0.forward(x, h) + h\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {""}, "test_compiler");
  request.set_debug_info(true);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const std::string message =
      ErrorOf(v1::LITE_BYTECODE, lowered->artifacts.at(v1::LITE_BYTECODE), kBadInputs);
  EXPECT_THAT(message,
              HasSubstr("Module hierarchy:top(Root)::<unknown>.__loweredModule__(Root)::forward."
                        "outer0(Outer)::forward.inner0(Inner)::forward.aten::add"));
  // Root to leaf, each with the line that was at work.
  EXPECT_THAT(message,
              ::testing::ContainsRegex("return self.outer0.forward.x, h. . h\n *~+ <--- HERE"));
  EXPECT_THAT(message,
              ::testing::ContainsRegex("return self.inner0.forward.x, h. - h\n *~+ <--- HERE"));
  EXPECT_THAT(message, ::testing::ContainsRegex("return x . h\n *~+ <--- HERE"));
}

TEST(EngineCounterpart, AnErrorInALoweredSubmoduleShowsTheHierarchyAroundIt) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", NewBinary("Inner", "x + h", unit));
  root.register_module("b", NewBinary("Stays", "x + 1", unit));
  root.define("def forward(self, x, h):\n    return self.a.forward(self.b.forward(x, h), h) + h\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {"a"}, "test_compiler");
  request.set_debug_info(true);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const std::string message =
      ErrorOf(v1::LITE_BYTECODE, lowered->artifacts.at(v1::LITE_BYTECODE), kBadInputs);
  EXPECT_THAT(message, HasSubstr("Module hierarchy:top(Root)::<unknown>.a(Inner)::forward."
                                 "__loweredModule__(Inner)::forward.aten::add"));
  EXPECT_THAT(message, ::testing::ContainsRegex(
                           "return self.a.forward.self.b.forward.x, h., h. . h\n *~+ <--- HERE"));
  EXPECT_THAT(message, ::testing::ContainsRegex("return x . h\n *~+ <--- HERE"));
}

TEST(EngineCounterpart, AnErrorInEachOfTwoLoweredSubmodulesShowsTheHierarchy) {
  const Unit unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", NewMiddle(NewBinary("Inner", "x + h", unit), unit));
  root.register_module("b", NewMiddle(NewBinary("Inner", "x - h", unit), unit));
  root.define(
      "def forward(self, x, h):\n"
      "    if x.size(0) == 2:\n"
      "        return self.a.forward(x, h)\n"
      "    return self.b.forward(x, h)\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {"a.submodule", "b.submodule"}, "test_compiler");
  request.set_debug_info(true);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (const int rows : {2, 3}) {
    const std::string message = ErrorOf(v1::LITE_BYTECODE, lowered->artifacts.at(v1::LITE_BYTECODE),
                                        {torch::rand({rows, 4}), torch::rand({13, 9})});
    const bool in_a = rows == 2;
    EXPECT_THAT(message,
                HasSubstr(absl::StrCat("Module hierarchy:top(Root)::<unknown>.", in_a ? "a" : "b",
                                       "(Middle)::forward.submodule(Inner)::forward."
                                       "__loweredModule__(Inner)::forward.aten::",
                                       in_a ? "add" : "sub")));
    EXPECT_THAT(message, ::testing::ContainsRegex(in_a ? "return x . h\n *~+ <--- HERE"
                                                       : "return x - h\n *~+ <--- HERE"));
  }
}

}  // namespace
}  // namespace lowerd::lowering::testing
