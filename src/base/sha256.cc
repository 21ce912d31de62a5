#include "src/base/sha256.h"

#include <new>

#include <openssl/evp.h>

namespace lowerd {

namespace {

// OpenSSL 3 looks an algorithm up by name each time that it is not given one it has fetched.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA2-256", nullptr);
  return algorithm;
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* ctx) const { EVP_MD_CTX_free(ctx); }

Sha256::Sha256() : ctx_(EVP_MD_CTX_new()) {
  // OpenSSL 3 fails here only for want of memory.
  if (ctx_ == nullptr || EVP_DigestInit_ex(ctx_.get(), Algorithm(), nullptr) != 1) {
    throw std::bad_alloc();
  }
}

void Sha256::Update(absl::string_view bytes) {
  EVP_DigestUpdate(ctx_.get(), bytes.data(), bytes.size());
}

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> hash;
  EVP_DigestFinal_ex(ctx_.get(), hash.data(), nullptr);
  return hash;
}

std::array<uint8_t, 32> Sha256::Of(absl::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.Finish();
}

}  // namespace lowerd
