#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lowerd::lowering {

struct ZipEntry {
  std::string name;
  // 0 is stored, 8 deflated.
  uint16_t method = 0;
  uint32_t crc32 = 0;
  int64_t compressed_size = 0;
  int64_t size = 0;
  // Of the entry's (compressed) bytes, from the start of the file.
  int64_t data_offset = 0;
};

// The entries of a zip file (zip64 too), in the order of the central directory. MODEL_CORRUPT
// unless the directory is where the end record says, each local header agrees with it, all data
// lies inside the file, and no two entries overlap: so that no reader can be shown other bytes than
// another. Allocates in proportion to the directory's size in the file.
absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(absl::string_view file, int max_entries);

// True if an end-of-central-directory record is there.
bool HasZipEnd(absl::string_view file);

}  // namespace lowerd::lowering
