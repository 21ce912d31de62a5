#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <torch/csrc/jit/api/module.h>

#include "src/lowering/engine.h"

namespace lowerd::lowering::testing {

// Reference and test backends; loaded at the first call.
const Toolchain& TestToolchain();

// Grants names as the registry does when nothing collides.
class FakeHost final : public JobHost {
 public:
  void OnProgress(v1::LowerModelMetadata::State state, int, int) override;
  absl::StatusOr<std::vector<uint32_t>> ClaimNames(const internal::ClaimNames& claims) override;

  const std::vector<internal::ClaimNames>& claims() const { return claims_; }
  // Without repetitions.
  const std::vector<v1::LowerModelMetadata::State>& states() const { return states_; }

 private:
  std::vector<internal::ClaimNames> claims_;
  std::vector<v1::LowerModelMetadata::State> states_;
};

inline const std::vector<v1::Format> kAllFormats = {v1::TORCHSCRIPT, v1::LITE_BYTECODE,
                                                    v1::FLATBUFFER};

// A new module of a new class __torch__.<name>, mangled if there is one already, in its own
// compilation unit unless one is given.
torch::jit::Module NewModule(const std::string& name,
                             std::shared_ptr<torch::jit::CompilationUnit> unit =
                                 std::make_shared<torch::jit::CompilationUnit>());
// Class __torch__.Leaf: tanh(x * weight) + 0.25 with a random weight of 4.
torch::jit::Module NewLeaf(const std::shared_ptr<torch::jit::CompilationUnit>& unit);
// Class __torch__.Pair: b(a(x)) - 0.5.
torch::jit::Module NewPair(const torch::jit::Module& a, const torch::jit::Module& b);
// Another instance of the same class with a weight of its own.
torch::jit::Module Sibling(const torch::jit::Module& leaf);

std::string Save(const torch::jit::Module& module,
                 const std::unordered_map<std::string, std::string>& extra_files = {});
torch::jit::Module Load(const std::string& archive);

// A canonical request for all formats: each path, its forward (or `methods`), one backend.
v1::LowerModelRequest Request(const std::string& model, const std::vector<std::string>& paths,
                              const std::string& backend = "reference",
                              const std::vector<std::string>& methods = {"forward"});

struct Lowered {
  v1::Manifest manifest;
  std::map<v1::Format, std::string> artifacts;
};
absl::StatusOr<Lowered> RunLower(const std::string& model, const v1::LowerModelRequest& request,
                                 FakeHost& host,
                                 const std::map<std::string, std::string>& blobs = {});
absl::StatusOr<Lowered> RunLower(const std::string& model, const v1::LowerModelRequest& request);
absl::StatusOr<v1::LoweringPlan> RunPlan(const std::string& model,
                                         const v1::LowerModelRequest& request);
absl::StatusOr<v1::ModelDescription> RunInspect(const std::string& model);

// Loads an artifact as a device does and calls a method. Throws c10::Error.
c10::IValue RunArtifact(v1::Format format, const std::string& artifact, const std::string& method,
                        const std::vector<c10::IValue>& inputs);

// Fails the running test where an artifact gives something else than the model on `inputs`.
void ExpectSameOutputs(const std::string& model, const Lowered& lowered,
                       const std::vector<c10::IValue>& inputs,
                       const std::string& method = "forward");

// Type of each submodule in a TorchScript archive, by path.
std::map<std::string, std::string> TypesByPath(const std::string& archive);

}  // namespace lowerd::lowering::testing
