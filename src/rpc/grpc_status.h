#pragma once

#include "absl/status/status.h"
#include <grpcpp/support/status.h>

namespace lowerd::rpc {

// The one conversion pair. All payloads ride as google.rpc.Status in the status' binary details
// (grpc-status-details-bin), so code, message, reason and details survive both ways.
//
// Both travel in HTTP trailers, of which many clients take 8 KiB in all: a longer message is cut,
// and details that do not fit are shortened or left out, the ErrorInfo last.
grpc::Status ToGrpc(const absl::Status& status);
// A status without details (made by gRPC itself, or by another server) keeps its code and message
// and has no reason.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace lowerd::rpc
