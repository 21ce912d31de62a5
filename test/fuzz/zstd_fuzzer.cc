#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "server/zstd_stream.h"
#include "src/base/error.h"

// A client's compressed upload: inflated, or refused for a reason; nothing goes past the sink's
// limit.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kLimit = 8 << 20;
  lowerd::server::ZstdDecompressor decompressor;
  size_t inflated = 0;
  const auto sink = [&](absl::string_view piece) {
    inflated += piece.size();
    return inflated <= kLimit ? absl::OkStatus()
                              : lowerd::MakeError(lowerd::Reason::kLimitExceeded, "enough");
  };
  absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  while (!bytes.empty()) {
    const absl::string_view piece = bytes.substr(0, 1000);
    bytes.remove_prefix(piece.size());
    const absl::Status status = decompressor.Write(piece, sink);
    if (status.ok()) continue;
    if (lowerd::ReasonOf(status).empty()) __builtin_trap();
    break;
  }
  if (inflated > kLimit + (4 << 20)) __builtin_trap();
  return 0;
}
