#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "src/rpc/resource_name.h"

// A name that parses is printed as a name that parses to the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lowerd::rpc::ResourceName;
  const absl::string_view name(reinterpret_cast<const char*>(data), size);
  for (const auto parse : {&ResourceName::ParseRead, &ResourceName::ParseWrite}) {
    const auto parsed = parse(name);
    if (!parsed.ok()) continue;
    const auto again = parse(parsed->ToString());
    if (!again.ok() || again->ToString() != parsed->ToString() || again->digest != parsed->digest ||
        again->instance != parsed->instance || again->upload_id != parsed->upload_id ||
        again->compression != parsed->compression) {
      __builtin_trap();
    }
  }
  return 0;
}
