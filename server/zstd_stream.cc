#include "server/zstd_stream.h"

#include <new>
#include <zstd.h>

#include "absl/strings/str_cat.h"

#include "src/base/error.h"

namespace lowerd::server {
namespace {

// A hostile frame may ask for a window of gigabytes; REAPI clients use the default, at most 8 MiB.
constexpr int kMaxWindowLog = 23;

}  // namespace

void ZstdDecompressor::Free::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }
void ZstdCompressor::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

ZstdDecompressor::ZstdDecompressor() : context_(ZSTD_createDCtx()) {
  if (context_ == nullptr) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  buffer_.resize(ZSTD_DStreamOutSize());
}

absl::Status ZstdDecompressor::Write(absl::string_view compressed,
                                     const std::function<absl::Status(absl::string_view)>& sink) {
  ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
  bool more = in.size > 0;
  while (more) {
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    const size_t result = ZSTD_decompressStream(context_.get(), &out, &in);
    if (ZSTD_isError(result) != 0) {
      return MakeError(Reason::kInvalidRequest,
                       absl::StrCat("the upload is no zstd data: ", ZSTD_getErrorName(result)));
    }
    complete_ = result == 0;
    LOWERD_RETURN_IF_ERROR(sink(absl::string_view(buffer_.data(), out.pos)));
    // A full buffer may mean that more waits inside.
    more = in.pos < in.size || (out.pos == out.size && !complete_);
  }
  return absl::OkStatus();
}

ZstdCompressor::ZstdCompressor() : context_(ZSTD_createCCtx()) {
  if (context_ == nullptr) throw std::bad_alloc();
}

void ZstdCompressor::Write(absl::string_view bytes, bool end, std::string* out) {
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  const ZSTD_EndDirective mode = end ? ZSTD_e_end : ZSTD_e_continue;
  size_t remaining = 1;
  while (end ? remaining != 0 : in.pos < in.size) {
    const size_t used = out->size();
    out->resize(used + ZSTD_CStreamOutSize());
    ZSTD_outBuffer buffer{out->data() + used, out->size() - used, 0};
    remaining = ZSTD_compressStream2(context_.get(), &buffer, &in, mode);
    out->resize(used + buffer.pos);
    // Cannot fail: parameters are the defaults and the output grows.
    if (ZSTD_isError(remaining) != 0) return;
  }
}

}  // namespace lowerd::server
