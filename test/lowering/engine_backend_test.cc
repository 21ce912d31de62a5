// Backends of every kind: not on this host, sloppy, crashing, without preprocess.

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "src/base/error.h"
#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const v1::Backend& BackendNamed(const std::string& name) {
  for (const v1::Backend& backend : TestToolchain().backends) {
    if (backend.name() == name) return backend;
  }
  ADD_FAILURE() << "no backend " << name;
  return v1::Backend::default_instance();
}

// Class Sum: x + h in one line of source, which is what test_compiler can do.
torch::jit::Module NewSum(const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  torch::jit::Module sum = NewModule("Sum", unit);
  sum.define("def forward(self, x, h):\n    return x + h\n");
  return sum;
}

TEST(EngineBackends, ARefusedOperatorIsNamedWithTheModelsSourceLine) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module product = NewModule("Product", unit);
  product.define("def forward(self, x):\n    return torch.mul(x, x)\n");
  const std::string model = Save(NewPair(product, NewLeaf(unit)));
  const auto lowered = RunLower(model, Request(model, {"a"}, "test_compiler"));
  EXPECT_TRUE(HasReason(lowered.status(), Reason::kBackendFailed)) << lowered.status();
  const std::string message(lowered.status().message());
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("on module a ("), HasSubstr("test_compiler does not support aten::mul"),
            HasSubstr("return torch.mul(x, x)"), HasSubstr("<--- HERE"), Not(HasSubstr("\n"))));
}

TEST(EngineBackends, TheToolchainTellsWhatEachLibraryRegisters) {
  EXPECT_TRUE(BackendNamed("reference").available());
  EXPECT_TRUE(BackendNamed("reference").has_preprocess());
  EXPECT_FALSE(BackendNamed("test_unavailable").available());
  EXPECT_EQ(BackendNamed("test_unavailable").version(), "7.1");
  EXPECT_FALSE(BackendNamed("test_plain").has_preprocess());
  EXPECT_EQ(BackendNamed("test_plain").version(),
            BackendNamed("test_plain").library().digest().hash());
  EXPECT_EQ(BackendNamed("test_plain").library().file_name(), "liblowerd_backend_test.so");
}

TEST(EngineBackends, AnUnavailableBackendLowersAndIsNeverAskedToCompile) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(NewPair(NewLeaf(unit), NewLeaf(unit)));
  // Its compile aborts the process.
  const auto lowered = RunLower(model, Request(model, {"a", "b"}, "test_unavailable"));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (const auto& [format, artifact] : lowered->artifacts) {
    EXPECT_THROW(
        {
          try {
            RunArtifact(format, artifact, "forward", {torch::rand({4})});
          } catch (const std::exception& error) {
            EXPECT_THAT(error.what(), HasSubstr("Backend is not available"));
            throw;
          }
        },
        std::exception)
        << v1::Format_Name(format);
  }
}

TEST(EngineBackends, AModelLoweredToAnUnavailableBackendIsToldApartFromACorruptOne) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(NewPair(NewLeaf(unit), NewLeaf(unit)));
  const auto first = RunLower(model, Request(model, {"a"}, "test_unavailable"));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string& half = first->artifacts.at(v1::TORCHSCRIPT);
  const auto second = RunLower(half, Request(half, {"b"}));
  EXPECT_TRUE(HasReason(second.status(), Reason::kBackendFailed)) << second.status();
}

TEST(EngineBackends, ABackendWithoutPreprocessGetsTheModule) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(NewPair(NewLeaf(unit), NewLeaf(unit)));
  v1::LowerModelRequest request = Request(model, {"a", "b"}, "test_plain");
  request.clear_formats();
  request.add_formats(v1::TORCHSCRIPT);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {torch::linspace(-1, 1, 4)});
}

TEST(EngineBackends, APreprocessThatChangesItsModuleChangesNothingElse) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module leaf = NewLeaf(unit);
  torch::jit::Module around = NewModule("Holder", unit);
  around.register_module("inner", leaf);
  around.define("def forward(self, x):\n    return self.inner.forward(x)\n");
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("stays", leaf);
  root.register_module("lowered", around);
  root.define("def forward(self, x):\n    return self.stays.forward(x), self.lowered.forward(x)\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {"lowered"}, "test_rewrites");
  request.clear_formats();
  request.add_formats(v1::TORCHSCRIPT);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const torch::Tensor x = torch::linspace(-1, 1, 4);
  const auto got =
      RunArtifact(v1::TORCHSCRIPT, lowered->artifacts.at(v1::TORCHSCRIPT), "forward", {x})
          .toTupleRef()
          .elements()
          .vec();
  const auto expected =
      RunArtifact(v1::TORCHSCRIPT, model, "forward", {x}).toTupleRef().elements().vec();
  EXPECT_TRUE(torch::equal(got[0].toTensor(), expected[0].toTensor()));
  EXPECT_TRUE(torch::equal(got[1].toTensor(), torch::full({4}, 0.25)));
}

TEST(EngineBackends, ACrashInPreprocessEndsTheProcessAndNothingElse) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string model = Save(NewPair(NewLeaf(unit), NewLeaf(unit)));
  TestToolchain();
  EXPECT_EXIT(RunLower(model, Request(model, {"a"}, "test_crashes")).IgnoreError(),
              ::testing::KilledBySignal(SIGABRT), "");
}

TEST(EngineBackends, SeveralBackendsInOneModel) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", NewLeaf(unit));
  root.register_module("b", NewSum(unit));
  root.define("def forward(self, x):\n    return self.b.forward(self.a.forward(x), x)\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {"a", "b"});
  request.mutable_targets(1)->set_backend("test_compiler");
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ(lowered->manifest.producer().backends_size(), 2);
  ExpectSameOutputs(model, *lowered, {torch::linspace(-1, 1, 4)});
}

// What the lite interpreter says of an error in a call of forward.
std::string ErrorOf(const Lowered& lowered, v1::Format format,
                    const std::vector<c10::IValue>& inputs) {
  try {
    (void)RunArtifact(format, lowered.artifacts.at(format), "forward", inputs);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// PyTorch's own lowering writes such files so that they do not load.
TEST(EngineDebugInfo, ErrorsInEachOfSeveralLoweredModulesTellModuleAndSourceLine) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("one", NewSum(unit));
  root.register_module("two", NewSum(unit));
  root.define(
      "def forward(self, x, h):\n"
      "    y = self.one.forward(x, x)\n"
      "    return self.two.forward(y, h)\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {"one", "two"}, "test_compiler");
  request.set_debug_info(true);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {torch::rand({2, 4}), torch::rand({2, 4})});
  const std::string error =
      ErrorOf(*lowered, v1::LITE_BYTECODE, {torch::rand({2, 4}), torch::rand({2, 3})});
  EXPECT_THAT(error, HasSubstr("Module hierarchy:top(Root)::<unknown>.two(Sum)"));
  EXPECT_THAT(error, HasSubstr("self.two.forward(y, h)"));
  EXPECT_THAT(error, HasSubstr("return x + h"));
}

// Code that stays tells its place too, before and after the lowered modules and around them.
TEST(EngineDebugInfo, ErrorsAroundSeveralLoweredModulesTellModuleAndSourceLine) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module middle = NewModule("Middle", unit);
  middle.register_module("one", NewSum(unit));
  middle.register_module("two", NewSum(unit));
  middle.define(
      "def forward(self, x, h):\n"
      "    y = torch.sub(self.one.forward(x, x), self.two.forward(x, x))\n"
      "    return torch.mul(y, h)\n");
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("middle", middle);
  root.register_module("three", NewSum(unit));
  root.define(
      "def forward(self, x, h):\n"
      "    return self.middle.forward(self.three.forward(x, x), h)\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request =
      Request(model, {"middle.one", "middle.two", "three"}, "test_compiler");
  request.set_debug_info(true);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {torch::rand({2, 4}), torch::rand({2, 4})});
  const std::string error =
      ErrorOf(*lowered, v1::LITE_BYTECODE, {torch::rand({2, 4}), torch::rand({2, 3})});
  EXPECT_THAT(error, HasSubstr("Module hierarchy:top(Root)::<unknown>.middle(Middle)"));
  EXPECT_THAT(error, HasSubstr("torch.mul(y, h)"));
}

// Lowered modules that came with the upload keep theirs.
TEST(EngineDebugInfo, AModelThatHadLoweredModulesLoads) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("one", NewSum(unit));
  root.register_module("two", NewSum(unit));
  root.define("def forward(self, x, h):\n    return self.two.forward(self.one.forward(x, x), h)\n");
  const std::string model = Save(root);
  const auto first = RunLower(model, Request(model, {"one"}, "test_compiler"));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string again = first->artifacts.at(v1::TORCHSCRIPT);
  v1::LowerModelRequest request = Request(again, {"two"}, "test_compiler");
  request.set_debug_info(true);
  const auto lowered = RunLower(again, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {torch::rand({2, 4}), torch::rand({2, 4})});
}

}  // namespace
}  // namespace lowerd::lowering::testing
