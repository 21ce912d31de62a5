#pragma once

#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include <torch/csrc/jit/api/module.h>

#include "lowerd/v1/manifest.pb.h"

namespace lowerd::lowering {

// Writes a module to an empty file in one format. UNSUPPORTED_BY_FORMAT says what the format cannot
// hold; STORE_FULL if the disk is.
absl::Status WriteArtifact(const torch::jit::Module& module, v1::Format format,
                           const std::unordered_map<std::string, std::string>& extra_files,
                           bool debug_info, int fd);

}  // namespace lowerd::lowering
