#pragma once

#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace lowerd::server {

// Trace ids of the calls that asked for operations, so that the log line of a job can name its
// trace. Only in memory and bounded: the oldest go first. Thread-safe.
class OperationTraces {
 public:
  explicit OperationTraces(size_t max_entries) : max_entries_(max_entries) {}

  // The first trace of an operation stays.
  void Remember(const std::string& operation, const std::string& trace_id);
  // Empty if it is not known.
  std::string Find(const std::string& operation) const;

 private:
  const size_t max_entries_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::string> traces_ ABSL_GUARDED_BY(mutex_);
  // Oldest first.
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lowerd::server
