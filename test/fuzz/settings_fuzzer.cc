#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

#include "server/operations_service.h"
#include "server/policy.h"
#include "server/tokens.h"
#include "src/base/error.h"

// Texts that operators and callers write: filters, policies, token files.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto filter = lowerd::server::ParseOperationFilter(text);
  const auto policy = lowerd::server::Policy::Parse(text);
  const auto tokens = lowerd::server::TokenSet::Parse(text);
  for (const absl::Status& status : {filter.status(), policy.status(), tokens.status()}) {
    if (!status.ok() && lowerd::ReasonOf(status).empty()) __builtin_trap();
  }
  if (policy.ok()) (void)policy->Check({{"farm", "dev"}, "/a/B", {{"key", "value"}}});
  if (tokens.ok() && tokens->NameOf(text, absl::Now()).ok()) __builtin_trap();
  return 0;
}
