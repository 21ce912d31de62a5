#pragma once

#include "server/call_observer.h"
#include "server/metrics.h"
#include "server/operation_traces.h"

namespace lowerd::server {

// Counts each call in `metrics`, remembers which trace asked for which operation, and writes one
// log line a call (of gRPC's own services at debug level only).
class CallLog final : public CallObserver {
 public:
  // Both must outlive this object.
  CallLog(Metrics& metrics, OperationTraces& traces) : metrics_(metrics), traces_(traces) {}

  void OnStatus(const CallRecord& call) override;
  void OnEnd(const CallRecord& call) override;

 private:
  Metrics& metrics_;
  OperationTraces& traces_;
};

}  // namespace lowerd::server
