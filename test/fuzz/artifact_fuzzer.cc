#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "src/base/error.h"
#include "src/lowering/artifact_verifier.h"

// An artifact of any format is read or refused for a reason, and one that was read can be judged.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const lowerd::v1::Format format :
       {lowerd::v1::TORCHSCRIPT, lowerd::v1::LITE_BYTECODE, lowerd::v1::FLATBUFFER}) {
    const auto contents = lowerd::lowering::ReadArtifact(format, bytes);
    if (!contents.ok()) {
      if (lowerd::ReasonOf(contents.status()) != "VERIFICATION_FAILED") __builtin_trap();
      continue;
    }
    lowerd::v1::Manifest manifest;
    const absl::Status verified =
        lowerd::lowering::VerifyArtifacts({*contents}, /*lowered_before=*/{}, manifest);
    if (!verified.ok() && lowerd::ReasonOf(verified).empty()) __builtin_trap();
  }
  return 0;
}
