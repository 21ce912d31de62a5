#include "src/base/digest.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "src/base/error.h"
#include "src/base/sha256.h"

namespace lowerd {

Digest::Digest() : Digest(Sha256::Of(""), 0) {}

Digest::Digest(const Hash& hash, int64_t size_bytes) : hash_(hash), size_bytes_(size_bytes) {}

absl::StatusOr<Digest> Digest::Parse(absl::string_view hex, int64_t size_bytes) {
  const bool digits = std::all_of(hex.begin(), hex.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  if (hex.size() != 64 || !digits) {
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat("a digest's hash is 64 lower-case hexadecimal digits of SHA-256, "
                                  "not \"",
                                  absl::CHexEscape(hex.substr(0, 80)), "\""));
  }
  if (size_bytes < 0) {
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat("a digest's size cannot be ", size_bytes));
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  Hash hash;
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return Digest(hash, size_bytes);
}

Digest Digest::Of(absl::string_view bytes) {
  return Digest(Sha256::Of(bytes), static_cast<int64_t>(bytes.size()));
}

std::string Digest::hex() const {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash_.data()), hash_.size()));
}

std::string Digest::ToString() const { return absl::StrCat(hex(), "/", size_bytes_); }

}  // namespace lowerd
