// What artifacts hold beside code: extra files, weights once, state; and the same bytes each time.

#include <fcntl.h>
#include <functional>
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/jit/mobile/import.h>
#include <torch/csrc/jit/mobile/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/torch.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/lowering/serialize.h"
#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

torch::jit::Module TwoLeaves() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module leaf = NewLeaf(unit);
  return NewPair(leaf, Sibling(leaf));
}

// What `body` gives in a forked process.
std::string InChild(const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    const bool written =
        ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string out;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    out.append(buffer, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return out;
}

std::unordered_map<std::string, std::string> ExtraFiles(v1::Format format,
                                                        const std::string& artifact,
                                                        const std::vector<std::string>& names) {
  std::unordered_map<std::string, std::string> files;
  for (const std::string& name : names) files[name] = "";
  std::istringstream in(artifact);
  if (format == v1::TORCHSCRIPT) {
    torch::jit::load(in, c10::nullopt, files);
  } else {
    torch::jit::_load_for_mobile(in, c10::nullopt, files);
  }
  return files;
}

TEST(EngineFormats, ExtraFilesAreKeptReplacedAndAddedInEveryFormat) {
  const std::string binary("\0\1\xff\n", 4);
  const std::string model = Save(TwoLeaves(), {{"labels.txt", "cat\n"}, {"blob", binary}});
  const std::string fresh = "dog\n";
  const std::string hash = Digest::Of(fresh).hex();
  v1::LowerModelRequest request = Request(model, {"a"});
  (*request.mutable_extra_files())["labels.txt"].set_hash(hash);
  (*request.mutable_extra_files())["new.txt"].set_hash(hash);
  FakeHost host;
  const auto lowered = RunLower(model, request, host, {{hash, fresh}});
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(lowered->manifest.extra_files(), ElementsAre("blob", "labels.txt", "new.txt"));
  for (const auto& [format, artifact] : lowered->artifacts) {
    const auto files = ExtraFiles(format, artifact, {"labels.txt", "new.txt", "blob"});
    EXPECT_EQ(files.at("labels.txt"), fresh) << v1::Format_Name(format);
    EXPECT_EQ(files.at("new.txt"), fresh) << v1::Format_Name(format);
    EXPECT_EQ(files.at("blob"), binary) << v1::Format_Name(format);
  }
}

TEST(EngineFormats, WeightsAreWrittenOnceAlsoWhereLoweredAndOtherModulesShareThem) {
  constexpr int64_t kWeights = 100'000;
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const at::Tensor shared = at::rand({kWeights});
  torch::jit::Module root = NewModule("Root", unit);
  for (const char* name : {"a", "b", "c"}) {
    torch::jit::Module part = NewModule(std::string("Part") + name, unit);
    part.register_parameter("weight", shared, /*is_buffer=*/false);
    part.define("def forward(self, x):\n    return x * self.weight\n");
    root.register_module(name, part);
  }
  root.define(
      "def forward(self, x):\n"
      "    return self.a.forward(x) + self.b.forward(x) + self.c.forward(x)\n");
  const std::string model = Save(root);
  const auto lowered = RunLower(model, Request(model, {"a", "b"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (const auto& [format, artifact] : lowered->artifacts) {
    EXPECT_LT(artifact.size(), kWeights * sizeof(float) + 100'000) << v1::Format_Name(format);
  }
  ExpectSameOutputs(model, *lowered, {at::rand({1})});
}

TEST(EngineFormats, ABufferThatALoweredModuleChangesIsKeptWhenTheModuleIsSavedAgain) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module counter = NewModule("Counter", unit);
  counter.register_buffer("n", at::zeros({1}));
  counter.define("def forward(self, x):\n    self.n.add_(1)\n    return x + self.n\n");
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", counter);
  root.define("def forward(self, x):\n    return self.a.forward(x)\n");
  const std::string model = Save(root);
  const auto lowered = RunLower(model, Request(model, {"a"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const at::Tensor x = at::zeros({1});
  torch::jit::Module loaded = Load(lowered->artifacts.at(v1::TORCHSCRIPT));
  EXPECT_EQ(loaded.forward({x}).toTensor().item<float>(), 1);
  EXPECT_EQ(loaded.forward({x}).toTensor().item<float>(), 2);
  torch::jit::Module again = Load(Save(loaded));
  EXPECT_EQ(again.forward({x}).toTensor().item<float>(), 3);
  EXPECT_EQ(again.attr("a").toObjectRef().type()->name()->qualifiedName(),
            lowered->manifest.lowered_modules(0).wrapper_type());
}

TEST(EngineFormats, NonStridedAndOddTensorsSurvive) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module odd = NewModule("Odd", unit);
  odd.register_buffer("half", at::rand({4}).to(at::kHalf));
  odd.register_buffer("view", at::arange(16).to(at::kFloat).reshape({4, 4}).t()[1]);
  odd.register_buffer("flags", torch::tensor({true, false, true, true}));
  odd.register_buffer("empty", at::empty({0}));
  odd.register_buffer("quantised", at::quantize_per_tensor(at::rand({4}), 0.1, 3, at::kQUInt8));
  odd.define(
      "def forward(self, x):\n"
      "    return [x + self.half.float(), x * self.view, x * self.flags.float(), self.empty, "
      "self.quantised.dequantize()]\n");
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", odd);
  root.define("def forward(self, x):\n    return self.a.forward(x)\n");
  const std::string bytes = Save(root);
  const auto lowered = RunLower(bytes, Request(bytes, {"a"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(bytes, *lowered, {at::linspace(-1, 1, 4)});
}

TEST(EngineFormats, TheSameRequestGivesTheSameBytesInEveryProcess) {
  const std::string model = Save(TwoLeaves(), {{"a.txt", "1"}, {"b.txt", "2"}, {"c.txt", "3"}});
  TestToolchain();
  for (const bool debug_info : {false, true}) {
    auto digests = [&] {
      v1::LowerModelRequest request = Request(model, {"a", "b"});
      request.set_debug_info(debug_info);
      const auto lowered = RunLower(model, request);
      if (!lowered.ok()) return lowered.status().ToString();
      std::string out = Digest::Of(lowered->manifest.DebugString()).hex();
      for (const auto& [format, artifact] : lowered->artifacts) out += Digest::Of(artifact).hex();
      return out;
    };
    const std::string first = InChild(digests);
    EXPECT_EQ(first.size(), 4 * 64u) << first;
    EXPECT_EQ(InChild(digests), first);
  }
}

TEST(EngineFormats, TheManifestDescribesWhatWasAskedAndMade) {
  const std::string model = Save(TwoLeaves());
  FakeHost host;
  const auto lowered = RunLower(model, Request(model, {"a"}), host);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const v1::Manifest& manifest = lowered->manifest;
  EXPECT_EQ(manifest.model().digest().hash(), Digest::Of(model).hex());
  EXPECT_EQ(manifest.producer().backends(0).name(), "reference");
  EXPECT_GT(manifest.producer().bytecode_version(), 0);
  EXPECT_GT(manifest.producer().minimum_runtime_bytecode_version(), 0);
  ASSERT_EQ(manifest.artifacts_size(), 3);
  EXPECT_EQ(manifest.artifacts(0).file_name(), "model.lowered.pt");
  EXPECT_EQ(manifest.artifacts(1).file_name(), "model.lowered.ptl");
  EXPECT_EQ(manifest.artifacts(2).file_name(), "model.lowered.ff");
  const v1::LoweredModule& module = manifest.lowered_modules(0);
  EXPECT_THAT(module.signatures().at("forward"), HasSubstr("forward("));
  EXPECT_GT(module.payload_size_bytes(), 16);
  std::map<std::string, int64_t> inside, outside;
  for (const v1::OperatorCount& count : module.operators()) inside[count.name()] = count.count();
  for (const v1::OperatorCount& count : manifest.remaining_operators()) {
    outside[count.name()] = count.count();
  }
  EXPECT_EQ(inside, (std::map<std::string, int64_t>{
                        {"aten::add.Scalar", 1}, {"aten::mul.Tensor", 1}, {"aten::tanh", 1}}));
  EXPECT_EQ(outside, (std::map<std::string, int64_t>{{"aten::add.Scalar", 1},
                                                     {"aten::mul.Tensor", 1},
                                                     {"aten::sub.Scalar", 1},
                                                     {"aten::tanh", 1}}));
  using State = v1::LowerModelMetadata;
  EXPECT_THAT(host.states(),
              ElementsAre(State::LOADING, State::LOWERING, State::SERIALIZING, State::VERIFYING));
}

// Inputs as torch.save writes them.
std::string Inputs(const std::vector<c10::IValue>& inputs) {
  const std::vector<char> bytes =
      torch::jit::pickle_save(c10::ivalue::Tuple::create(std::vector<c10::IValue>(inputs)));
  return std::string(bytes.begin(), bytes.end());
}

TEST(EngineSamples, OutputsAreComparedInEveryFormat) {
  const std::string model = Save(TwoLeaves());
  const std::string inputs = Inputs({at::rand({4})});
  const std::string hash = Digest::Of(inputs).hex();
  v1::LowerModelRequest request = Request(model, {"a"});
  request.add_sample_inputs()->set_method("forward");
  request.mutable_sample_inputs(0)->mutable_inputs()->set_hash(hash);
  FakeHost host;
  const auto lowered = RunLower(model, request, host, {{hash, inputs}});
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  std::vector<std::string> checks;
  for (const auto& check : lowered->manifest.verifications()) checks.push_back(check.check());
  EXPECT_THAT(checks, Contains("outputs:forward"));
}

TEST(EngineSamples, AnUnavailableBackendIsNotRunAndTheManifestSaysSo) {
  const std::string model = Save(TwoLeaves());
  const std::string inputs = Inputs({at::rand({4})});
  const std::string hash = Digest::Of(inputs).hex();
  v1::LowerModelRequest request = Request(model, {"a"}, "test_unavailable");
  request.add_sample_inputs()->set_method("forward");
  request.mutable_sample_inputs(0)->mutable_inputs()->set_hash(hash);
  FakeHost host;
  const auto lowered = RunLower(model, request, host, {{hash, inputs}});
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const auto& last = *lowered->manifest.verifications().rbegin();
  EXPECT_EQ(last.check(), "outputs:forward");
  EXPECT_THAT(last.result(), HasSubstr("test_unavailable is not available"));
}

TEST(EngineSamples, ABackendThatChangesOutputsIsFound) {
  const std::string model = Save(TwoLeaves());
  const std::string inputs = Inputs({at::rand({4})});
  const std::string hash = Digest::Of(inputs).hex();
  v1::LowerModelRequest request = Request(model, {"a"}, "test_rewrites");
  request.clear_formats();
  request.add_formats(v1::TORCHSCRIPT);
  request.add_sample_inputs()->set_method("forward");
  request.mutable_sample_inputs(0)->mutable_inputs()->set_hash(hash);
  FakeHost host;
  const auto lowered = RunLower(model, request, host, {{hash, inputs}});
  EXPECT_TRUE(HasReason(lowered.status(), Reason::kVerificationFailed)) << lowered.status();
  EXPECT_THAT(std::string(lowered.status().message()), HasSubstr("values differ"));
}

TEST(EngineFormats, DiskThatIsFullIsSaidAndDoesNotEndTheProcess) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module model = NewPair(NewLeaf(unit), NewLeaf(unit));
  for (const v1::Format format : {v1::TORCHSCRIPT, v1::LITE_BYTECODE, v1::FLATBUFFER}) {
    const auto full = OpenFile("/dev/full", O_WRONLY);
    ASSERT_TRUE(full.ok()) << full.status();
    const absl::Status status = WriteArtifact(model, format, {}, false, full->get());
    EXPECT_TRUE(HasReason(status, Reason::kStoreFull)) << status;
  }
}

TEST(EngineFormats, EmptyTuplesAreRefusedWhereTheLiteInterpreterCannotReadThem) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root = NewModule("Root", unit);
  root.register_module("a", NewLeaf(unit));
  root.define("def forward(self, x) -> Tuple[()]:\n    self.a.forward(x)\n    return ()\n");
  const std::string model = Save(root);
  v1::LowerModelRequest request = Request(model, {"a"});
  request.clear_formats();
  request.add_formats(v1::TORCHSCRIPT);
  EXPECT_TRUE(RunLower(model, request).ok());
  for (const v1::Format format : {v1::LITE_BYTECODE, v1::FLATBUFFER}) {
    request.set_formats(0, format);
    const absl::Status status = RunLower(model, request).status();
    EXPECT_TRUE(HasReason(status, Reason::kUnsupportedByFormat)) << status;
  }
}

}  // namespace
}  // namespace lowerd::lowering::testing
