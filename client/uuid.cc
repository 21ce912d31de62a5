#include "client/uuid.h"

#include <cstdint>
#include <random>

#include "absl/strings/str_format.h"

namespace lowerd::client {

std::string RandomUuid() {
  std::random_device device;
  const uint32_t a = device(), b = device(), c = device(), d = device();
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%04x%08x", a, b >> 16, b & 0xfff,
                         0x8000 | (c >> 16 & 0x3fff), c & 0xffff, d);
}

}  // namespace lowerd::client
