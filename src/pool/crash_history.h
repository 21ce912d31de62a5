#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace lowerd::pool {

// Remembers which models crash their workers, so that one that keeps doing so is refused for a
// while without a job. In memory and bounded: the oldest entries go first. Thread-safe.
class CrashHistory {
 public:
  // A model is refused for `quarantine` after its latest crash, from its second crash on.
  explicit CrashHistory(absl::Duration quarantine) : quarantine_(quarantine) {}

  // WORKER_CRASHED with RetryInfo and the last crash's description while `model` (its digest in
  // hexadecimal) is refused.
  absl::Status Check(const std::string& model, absl::Time now) const;
  void AddCrash(const std::string& model, const std::string& description, absl::Time now);
  // A job on it went well: what was before does not count.
  void Forgive(const std::string& model);

 private:
  struct Entry {
    int crashes = 0;
    absl::Time last;
    std::string description;
  };

  const absl::Duration quarantine_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lowerd::pool
