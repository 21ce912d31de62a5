#pragma once

#include <string>

#include "google/longrunning/operations.pb.h"

#include "src/jobs/operation.h"

namespace lowerd::server {

// "QUEUED" and so on, as the API spells it.
std::string StateName(jobs::State state);

// An operation as the API shows it: metadata is lowerd.v1.LowerModelMetadata, the result a
// lowerd.v1.LowerModelResponse or a google.rpc.Status.
google::longrunning::Operation OperationToProto(const jobs::Operation& operation);

}  // namespace lowerd::server
