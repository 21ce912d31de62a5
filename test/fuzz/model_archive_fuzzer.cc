#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "src/base/error.h"
#include "src/lowering/model_archive.h"

// Whatever the bytes are: they are opened or refused for a reason, and records of an archive that
// was opened can be asked for.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lowerd::lowering::ModelArchive;
  const auto archive =
      ModelArchive::Open(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!archive.ok()) {
    if (lowerd::ReasonOf(archive.status()).empty()) __builtin_trap();
    return 0;
  }
  for (const ModelArchive::Record& record : archive->records()) {
    if (archive->Find(record.name) != &record) __builtin_trap();
    const auto content = archive->Read(record);
    if (content.ok() && content->size() != static_cast<size_t>(record.size)) __builtin_trap();
  }
  return 0;
}
