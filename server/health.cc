#include "server/health.h"

#include <utility>

#include "src/base/digest.h"
#include "src/base/error.h"

namespace lowerd::server {

absl::Status Health::Live() const { return workers_.Health(); }

absl::Status Health::Ready() {
  if (draining_) return MakeError(Reason::kServerUnavailable, "the server is draining");
  LOWERD_RETURN_IF_ERROR(workers_.Health());
  LOWERD_RETURN_IF_ERROR(jobs_.List({}, 1, "").status());
  // A remote store is asked over the network about a blob that is not there.
  LOWERD_RETURN_IF_ERROR(blobs_.FindMissing({Digest::Of("lowerd readiness")}).status());
  return blobs_.CreateTemporary().status();
}

}  // namespace lowerd::server
