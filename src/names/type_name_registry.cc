#include "src/names/type_name_registry.h"

#include "absl/strings/str_cat.h"

#include "src/base/sha256.h"

namespace lowerd::names {

uint32_t PreferredMangle(absl::string_view base_name, const Digest::Hash& identity,
                         uint32_t range) {
  Sha256 sha;
  sha.Update(absl::StrCat(base_name.size(), ":", base_name));
  sha.Update(absl::string_view(reinterpret_cast<const char*>(identity.data()), identity.size()));
  const Digest::Hash hash = sha.Finish();
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof number; ++i) number = number << 8 | hash[i];
  return static_cast<uint32_t>(number % range);
}

}  // namespace lowerd::names
