#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "src/base/digest.h"

namespace lowerd::rpc {

enum class Compression { kIdentity, kZstd };

// A ByteStream resource name of the Remote Execution API. Value type.
struct ResourceName {
  // May have several segments; may be empty.
  std::string instance;
  // Only in write names.
  std::string upload_id;
  Compression compression = Compression::kIdentity;
  // Of the uncompressed bytes.
  Digest digest;

  // INVALID_REQUEST says what is wrong; NOT_SUPPORTED for a compressor or digest function that
  // lowerd does not have.
  static absl::StatusOr<ResourceName> ParseRead(absl::string_view name);
  static absl::StatusOr<ResourceName> ParseWrite(absl::string_view name);

  // A write name if upload_id is not empty, else a read name.
  std::string ToString() const;
};

}  // namespace lowerd::rpc
