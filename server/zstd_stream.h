#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace lowerd::server {

// Streaming zstd for compressed-blobs. Move-only; thread-compatible; memory is bounded by zstd's
// window.

class ZstdDecompressor {
 public:
  ZstdDecompressor();

  // Hands what `compressed` inflates to to `sink`, piece by piece. INVALID_REQUEST if it is no zstd
  // data; the sink's error ends it.
  absl::Status Write(absl::string_view compressed,
                     const std::function<absl::Status(absl::string_view)>& sink);
  // True at the end of a frame.
  bool complete() const { return complete_; }

 private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  std::string buffer_;
  bool complete_ = true;
};

class ZstdCompressor {
 public:
  ZstdCompressor();

  // Appends to `out` what `bytes` compresses to; with `end` the frame is closed.
  void Write(absl::string_view bytes, bool end, std::string* out);

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
};

}  // namespace lowerd::server
