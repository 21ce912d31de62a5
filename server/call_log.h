#pragma once

#include "server/call_observer.h"
#include "server/metrics.h"
#include "server/operation_traces.h"

namespace lowerd::server {

// Counts each call in `metrics`, remembers which trace asked for which operation, and writes one
// log line a call (of gRPC's own services at debug level only). Both must outlive the observer.
CallObserver MakeCallLog(Metrics& metrics, OperationTraces& traces);

}  // namespace lowerd::server
