#pragma once

#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "src/jobs/operation_store.h"

namespace lowerd::jobs {

// Results of actions in memory, least recently used first out. The durable ones are in the state
// store; this is what answers without touching it. Thread-safe; never blocks on I/O.
class ActionCache {
 public:
  explicit ActionCache(size_t max_entries) : max_entries_(max_entries) {}

  // Null if it is not here.
  std::shared_ptr<const CachedAction> Find(absl::string_view action_key);
  void Put(absl::string_view action_key, CachedAction action);
  void Erase(absl::string_view action_key);

 private:
  struct Entry {
    std::shared_ptr<const CachedAction> action;
    std::list<std::string>::iterator place;
  };

  const size_t max_entries_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // The front was used last.
  std::list<std::string> recency_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lowerd::jobs
