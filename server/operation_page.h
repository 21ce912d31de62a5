#pragma once

#include "server/html.h"
#include "src/jobs/operation.h"

namespace lowerd::server {

// One operation: where it stands or how it ended, and of a lowering that succeeded the module tree
// with what was lowered, artifacts, checks and what stays, all from its manifest.
Html OperationHtml(const jobs::Operation& operation);

}  // namespace lowerd::server
