#include "test/lowering/engine_fixture.h"

#include <cstring>
#include <sstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/csrc/jit/mobile/import.h>
#include <torch/csrc/jit/mobile/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/torch.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/base/type_name.h"
#include "src/lowering/sample_check.h"

namespace lowerd::lowering::testing {
namespace {

constexpr int64_t kMaxFile = int64_t{1} << 30;

Fd MemoryFile(const std::string& content = "") {
  Fd fd(::memfd_create("lowerd-test", MFD_CLOEXEC));
  EXPECT_GE(fd.get(), 0);
  EXPECT_TRUE(WriteAllAt(fd.get(), content, 0).ok());
  return fd;
}

std::vector<c10::IValue> Copied(const std::vector<c10::IValue>& values) {
  std::vector<c10::IValue> out;
  for (const c10::IValue& value : values) out.push_back(value.deepcopy());
  return out;
}

void SetDigest(const std::string& bytes, build::bazel::remote::execution::v2::Digest& out) {
  const Digest digest = Digest::Of(bytes);
  out.set_hash(digest.hex());
  out.set_size_bytes(digest.size_bytes());
}

}  // namespace

const Toolchain& TestToolchain() {
  static const Toolchain& toolchain = *new Toolchain([] {
    auto loaded = LoadToolchain({{LOWERD_REFERENCE_BACKEND, LOWERD_TEST_BACKENDS}, {}});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }());
  return toolchain;
}

void FakeHost::OnProgress(v1::LowerModelMetadata::State state, int, int) {
  if (states_.empty() || states_.back() != state) states_.push_back(state);
}

absl::StatusOr<std::vector<uint32_t>> FakeHost::ClaimNames(const internal::ClaimNames& claims) {
  claims_.push_back(claims);
  std::vector<uint32_t> out;
  for (const auto& claim : claims.claims()) {
    uint32_t number = 0;
    std::memcpy(&number, claim.identity().data(), sizeof number);
    out.push_back(number % kMangleRange);
  }
  return out;
}

torch::jit::Module NewModule(const std::string& name,
                             std::shared_ptr<torch::jit::CompilationUnit> unit) {
  torch::jit::Module module(c10::QualifiedName("__torch__." + name), std::move(unit),
                            /*shouldMangle=*/true);
  module.register_attribute("training", c10::BoolType::get(), false);
  return module;
}

torch::jit::Module NewLeaf(const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  torch::jit::Module leaf = NewModule("Leaf", unit);
  leaf.register_parameter("weight", torch::rand({4}), /*is_buffer=*/false);
  leaf.define("def forward(self, x):\n    return torch.tanh(x * self.weight) + 0.25\n");
  return leaf;
}

torch::jit::Module NewPair(const torch::jit::Module& a, const torch::jit::Module& b) {
  torch::jit::Module pair = NewModule("Pair", a._ivalue()->compilation_unit());
  pair.register_module("a", a);
  pair.register_module("b", b);
  pair.define("def forward(self, x):\n    return self.b.forward(self.a.forward(x)) - 0.5\n");
  return pair;
}

torch::jit::Module Sibling(const torch::jit::Module& leaf) {
  torch::jit::Module sibling = leaf.deepcopy();
  sibling.setattr("weight", torch::rand({4}));
  return sibling;
}

std::string Save(const torch::jit::Module& module,
                 const std::unordered_map<std::string, std::string>& extra_files) {
  std::ostringstream out;
  module.save(out, extra_files);
  return out.str();
}

torch::jit::Module Load(const std::string& archive) {
  std::istringstream in(archive);
  return torch::jit::load(in);
}

v1::LowerModelRequest Request(const std::string& model, const std::vector<std::string>& paths,
                              const std::string& backend, const std::vector<std::string>& methods) {
  v1::LowerModelRequest request;
  SetDigest(model, *request.mutable_model());
  for (const std::string& path : paths) {
    v1::Target& target = *request.add_targets();
    target.set_path(path);
    target.set_backend(backend);
    for (const std::string& name : methods) {
      v1::Method& method = *target.add_methods();
      method.set_name(name);
      method.mutable_compile_spec()->set_string("");
    }
  }
  for (const v1::Format format : kAllFormats) request.add_formats(format);
  request.set_artifact_stem("model");
  return request;
}

absl::StatusOr<Lowered> RunLower(const std::string& model, const v1::LowerModelRequest& request,
                                 FakeHost& host, const std::map<std::string, std::string>& blobs) {
  const Toolchain& toolchain = TestToolchain();
  JobFiles files;
  std::vector<Fd> open;
  auto file = [&open](const std::string& content) {
    open.push_back(MemoryFile(content));
    return open.back().get();
  };
  files.model = file(model);
  for (const auto& [hash, content] : blobs) files.blobs[hash] = file(content);
  for (const int format : request.formats()) {
    files.artifacts[static_cast<v1::Format>(format)] = file("");
  }
  Lowered out;
  LOWERD_ASSIGN_OR_RETURN(out.manifest, Lower(request, files, toolchain, host));
  for (const auto& [format, fd] : files.artifacts) {
    LOWERD_ASSIGN_OR_RETURN(out.artifacts[format], ReadFileToString(fd, kMaxFile));
  }
  return out;
}

absl::StatusOr<Lowered> RunLower(const std::string& model, const v1::LowerModelRequest& request) {
  FakeHost host;
  return RunLower(model, request, host);
}

absl::StatusOr<v1::LoweringPlan> RunPlan(const std::string& model,
                                         const v1::LowerModelRequest& request) {
  const Toolchain& toolchain = TestToolchain();
  const Fd fd = MemoryFile(model);
  JobFiles files;
  files.model = fd.get();
  FakeHost host;
  return Plan(request, files, toolchain, host);
}

absl::StatusOr<v1::ModelDescription> RunInspect(const std::string& model) {
  const Toolchain& toolchain = TestToolchain();
  const Fd fd = MemoryFile(model);
  JobFiles files;
  files.model = fd.get();
  v1::InspectModelRequest request;
  SetDigest(model, *request.mutable_model());
  return Inspect(request, files, toolchain);
}

c10::IValue RunArtifact(v1::Format format, const std::string& artifact, const std::string& method,
                        const std::vector<c10::IValue>& inputs) {
  const torch::NoGradGuard no_grad;
  if (format == v1::TORCHSCRIPT) return Load(artifact).get_method(method)(Copied(inputs));
  std::istringstream in(artifact);
  return torch::jit::_load_for_mobile(in, c10::Device(c10::kCPU))
      .get_method(method)(Copied(inputs));
}

void ExpectSameOutputs(const std::string& model, const Lowered& lowered,
                       const std::vector<c10::IValue>& inputs, const std::string& method) {
  const c10::IValue expected = RunArtifact(v1::TORCHSCRIPT, model, method, inputs);
  for (const auto& [format, artifact] : lowered.artifacts) {
    try {
      const c10::IValue got = RunArtifact(format, artifact, method, inputs);
      EXPECT_EQ(FirstDifference(got, expected, "output"), "") << v1::Format_Name(format);
    } catch (const std::exception& error) {
      ADD_FAILURE() << v1::Format_Name(format) << ": " << error.what();
    }
  }
}

std::map<std::string, std::string> TypesByPath(const std::string& archive) {
  std::map<std::string, std::string> out;
  const torch::jit::Module root = Load(archive);
  for (const auto& module : root.named_modules()) {
    out[module.name] = module.value.type()->name()->qualifiedName();
  }
  return out;
}

}  // namespace lowerd::lowering::testing
