#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lowerd {

// Names a blob: SHA-256 of its bytes and its size in bytes. Cannot hold an invalid value; the
// default is the digest of the empty blob. Value type; thread-compatible.
class Digest {
 public:
  using Hash = std::array<uint8_t, 32>;

  // Of the empty blob.
  Digest();
  Digest(const Hash& hash, int64_t size_bytes);

  // `hex` must be 64 lower-case hexadecimal digits and `size_bytes` not negative; else
  // INVALID_REQUEST.
  static absl::StatusOr<Digest> Parse(absl::string_view hex, int64_t size_bytes);
  // Digest of these bytes.
  static Digest Of(absl::string_view bytes);

  const Hash& hash() const { return hash_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::string hex() const;
  // "{hash}/{size}", as REAPI resource names spell it.
  std::string ToString() const;

  friend bool operator==(const Digest&, const Digest&) = default;
  friend std::strong_ordering operator<=>(const Digest&, const Digest&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.hash_, d.size_bytes_);
  }

 private:
  Hash hash_;
  int64_t size_bytes_;
};

}  // namespace lowerd
