#include "src/jobs/action_cache.h"

#include <utility>

namespace lowerd::jobs {

std::shared_ptr<const CachedAction> ActionCache::Find(absl::string_view action_key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(action_key);
  if (found == entries_.end()) return nullptr;
  recency_.splice(recency_.begin(), recency_, found->second.place);
  return found->second.action;
}

void ActionCache::Put(absl::string_view action_key, CachedAction action) {
  auto shared = std::make_shared<const CachedAction>(std::move(action));
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(action_key);
  if (found != entries_.end()) {
    found->second.action = std::move(shared);
    recency_.splice(recency_.begin(), recency_, found->second.place);
    return;
  }
  recency_.emplace_front(action_key);
  entries_.emplace(action_key, Entry{std::move(shared), recency_.begin()});
  if (entries_.size() <= max_entries_) return;
  entries_.erase(recency_.back());
  recency_.pop_back();
}

void ActionCache::Erase(absl::string_view action_key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(action_key);
  if (found == entries_.end()) return;
  recency_.erase(found->second.place);
  entries_.erase(found);
}

}  // namespace lowerd::jobs
