#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "src/lowering/artifact_verifier.h"

namespace lowerd::lowering {

// Reads a lite-interpreter flatbuffer. VERIFICATION_FAILED if its verifier does not accept it.
absl::StatusOr<ArtifactContents> ReadFlatbuffer(absl::string_view bytes);

}  // namespace lowerd::lowering
