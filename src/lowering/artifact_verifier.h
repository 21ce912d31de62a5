#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lowerd/v1/manifest.pb.h"

namespace lowerd::lowering {

// What is really in one finished artifact, read by our own means (no libtorch).
struct ArtifactContents {
  v1::Format format;
  // Qualified name of each class defined in code/ (or of each object type in a flatbuffer), with
  // its kind.
  std::map<std::string, v1::Type::Kind> types;
  // Qualified names of functions with bytecode, in file order; empty for TORCHSCRIPT.
  std::vector<std::string> functions;
  // Type names that data.pkl (and bytecode.pkl) refer to.
  std::vector<std::string> referenced_types;
  int64_t file_format_version = 0;
  // 0 for TORCHSCRIPT.
  int64_t bytecode_version = 0;
  // Sorted.
  std::vector<std::string> extra_files;
};

// LOWERED_MODULE, LOWERED_WRAPPER, CUSTOM_CLASS or, where a name alone does not tell, MODULE.
v1::Type::Kind KindOfTypeName(absl::string_view name);

// Reads a finished artifact. VERIFICATION_FAILED if it cannot be read.
absl::StatusOr<ArtifactContents> ReadArtifact(v1::Format format, absl::string_view bytes);

// Proves that the artifacts are what `manifest` (its lowered_modules) says: each artifact has
// exactly these lowered types and those of `lowered_before` (lowered types that the uploaded model
// had already), each of them has one __setstate__ in each lite artifact, no function is written
// twice, every mangle number can be parsed by PyTorch, every type that data refers to is defined,
// and the formats agree. Fills in manifest.types (names, kinds, formats), versions, extra_files and
// verifications. VERIFICATION_FAILED names what differs.
absl::Status VerifyArtifacts(const std::vector<ArtifactContents>& artifacts,
                             const std::vector<std::string>& lowered_before,
                             v1::Manifest& manifest);

}  // namespace lowerd::lowering
