#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <torch/csrc/jit/api/module.h>

#include "lowerd/v1/lowering.pb.h"
#include "lowerd/v1/manifest.pb.h"
#include "src/lowering/engine.h"

namespace lowerd::lowering {

// Runs the model and finished artifacts on sample inputs and compares what they give: structure,
// container types and values (floats within 1e-5 relative and 1e-6 absolute).
class SampleCheck {
 public:
  // Runs a deep copy of the model on each sample. INVALID_REQUEST if a sample is no tuple of
  // arguments or the model does not take it.
  static absl::StatusOr<SampleCheck> Run(const v1::LowerModelRequest& request,
                                         const JobFiles& files, const torch::jit::Module& model);

  // Artifacts that need this backend cannot run on this host: from now on Check does nothing, and
  // the manifest says so.
  void SkipArtifacts(const std::string& unavailable_backend) { unavailable_ = unavailable_backend; }

  // Loads the artifact as a device would and runs it. VERIFICATION_FAILED says what differs.
  absl::Status Check(v1::Format format, absl::string_view artifact) const;

  // One entry for each sample.
  void Describe(v1::Manifest& manifest) const;

 private:
  struct Sample {
    std::string method;
    std::vector<c10::IValue> inputs;
    c10::IValue expected;
  };
  std::vector<Sample> samples_;
  // Empty if artifacts can run here.
  std::string unavailable_;
};

// Loads a lite artifact, as PyTorch writes some types that its lite interpreter then cannot read.
// UNSUPPORTED_BY_FORMAT with the interpreter's words.
absl::Status CheckLiteLoads(v1::Format format, absl::string_view artifact);

// Where two values differ; empty if they are equal.
std::string FirstDifference(const c10::IValue& got, const c10::IValue& expected,
                            const std::string& where);

}  // namespace lowerd::lowering
