#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lowerd::lowering {

// MODEL_NOT_TORCHSCRIPT that says what the bytes look like instead and how to export the right
// thing; MODEL_CORRUPT for a zip that is cut off. For bytes that have no zip directory.
absl::Status NotAnArchiveError(absl::string_view bytes);

// MODEL_NOT_TORCHSCRIPT: "the upload is {what}, not a TorchScript model; {how to export one}".
absl::Status NotTorchScriptError(absl::string_view what);

}  // namespace lowerd::lowering
