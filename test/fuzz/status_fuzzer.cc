#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "src/base/error.h"

// A status read from a stranger's bytes survives being written and read again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Status status =
      lowerd::ParseStatus(absl::string_view(reinterpret_cast<const char*>(data), size));
  const absl::Status again = lowerd::ParseStatus(lowerd::SerializeStatus(status));
  if (again.code() != status.code()) __builtin_trap();
  lowerd::ReasonOf(status);
  lowerd::RetryDelayOf(status);
  return 0;
}
