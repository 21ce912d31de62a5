#include "server/operation_traces.h"

namespace lowerd::server {

void OperationTraces::Remember(const std::string& operation, const std::string& trace_id) {
  absl::MutexLock lock(&mutex_);
  if (!traces_.emplace(operation, trace_id).second) return;
  order_.push_back(operation);
  if (order_.size() <= max_entries_) return;
  traces_.erase(order_.front());
  order_.pop_front();
}

std::string OperationTraces::Find(const std::string& operation) const {
  absl::MutexLock lock(&mutex_);
  const auto found = traces_.find(operation);
  return found == traces_.end() ? "" : found->second;
}

}  // namespace lowerd::server
