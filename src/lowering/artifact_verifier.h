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

// Reads a finished artifact. VERIFICATION_FAILED if it cannot be read.
absl::StatusOr<ArtifactContents> ReadArtifact(v1::Format format, absl::string_view bytes);

// Proves that the artifacts are what `manifest` (its lowered_modules) says: each lowered and
// wrapper type is in each artifact exactly once, there is no other lowered type, each lowered type
// has one
// __setstate__ in each lite artifact, no function is written twice, every mangle number is below
// 2^31 - 1, every referenced type is defined, and the formats agree. `lowered_before` lists lowered
// types that the uploaded model had already. Fills in manifest.types (kinds, formats) and
// manifest.verifications. VERIFICATION_FAILED names what differs.
absl::Status VerifyArtifacts(const std::vector<ArtifactContents>& artifacts,
                             const std::vector<std::string>& lowered_before,
                             v1::Manifest& manifest);

}  // namespace lowerd::lowering
