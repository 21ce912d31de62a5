#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "src/lowering/zip_directory.h"

namespace lowerd::lowering {

// MODEL_NOT_TORCHSCRIPT that says what the bytes look like instead and how to export the right
// thing; MODEL_CORRUPT for a zip that is cut off. For bytes that have no zip directory.
absl::Status NotAnArchiveError(absl::string_view bytes);

// The same for a zip whose records are not those of PyTorch's archives.
absl::Status PlainZipError(const std::vector<ZipEntry>& entries);

// MODEL_NOT_TORCHSCRIPT: "the upload is {what}, not a TorchScript model; {how to export one}".
absl::Status NotTorchScriptError(absl::string_view what);

}  // namespace lowerd::lowering
