#include <cstddef>
#include <cstdint>

#include "lowerd/v1/lowering.pb.h"
#include "server/lowering_request.h"
#include "src/base/error.h"

// A request is refused for a reason or has a canonical form, which is its own canonical form.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lowerd::server::ParseLoweringRequest;
  static const auto& toolchain =
      *new lowerd::server::Toolchain(lowerd::server::MakeToolchain({}, {"reference", "other"}));
  lowerd::v1::LowerModelRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto parsed = ParseLoweringRequest(request, toolchain, {});
  if (!parsed.ok()) {
    if (lowerd::ReasonOf(parsed.status()).empty()) __builtin_trap();
    return 0;
  }
  const auto again = ParseLoweringRequest(parsed->canonical, toolchain, {});
  if (!again.ok() || again->action_key != parsed->action_key || again->inputs != parsed->inputs) {
    __builtin_trap();
  }
  return 0;
}
