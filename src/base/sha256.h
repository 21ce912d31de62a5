#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace lowerd {

// Incremental SHA-256 (OpenSSL). Move-only; thread-compatible.
class Sha256 {
 public:
  Sha256();

  void Update(absl::string_view bytes);
  // Ends this hash; only destruction and assignment are allowed afterwards.
  std::array<uint8_t, 32> Finish();

  static std::array<uint8_t, 32> Of(absl::string_view bytes);

 private:
  struct Free {
    void operator()(evp_md_ctx_st* ctx) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> ctx_;
};

}  // namespace lowerd
