#include "src/pool/crash_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "src/base/error.h"

namespace lowerd::pool {
namespace {

constexpr int kCrashesUntilRefused = 2;
constexpr size_t kMaxEntries = 1024;

}  // namespace

absl::Status CrashHistory::Check(const std::string& model, absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(model);
  if (found == entries_.end() || found->second.crashes < kCrashesUntilRefused) {
    return absl::OkStatus();
  }
  const Entry& entry = found->second;
  const absl::Duration left = entry.last + quarantine_ - now;
  if (left <= absl::ZeroDuration()) return absl::OkStatus();
  absl::Status status = MakeError(
      Reason::kWorkerCrashed, absl::StrCat("this model has crashed its worker ", entry.crashes,
                                           " times and is refused for another ",
                                           absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                                           "; the last time: ", entry.description));
  SetRetryDelay(status, left);
  return status;
}

void CrashHistory::AddCrash(const std::string& model, const std::string& description,
                            absl::Time now) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = entries_[model];
  if (now - entry.last > quarantine_) entry.crashes = 0;
  ++entry.crashes;
  entry.last = now;
  entry.description = description;
  if (entries_.size() <= kMaxEntries) return;
  entries_.erase(
      std::min_element(entries_.begin(), entries_.end(),
                       [](const auto& a, const auto& b) { return a.second.last < b.second.last; }));
}

void CrashHistory::Forgive(const std::string& model) {
  absl::MutexLock lock(&mutex_);
  entries_.erase(model);
}

}  // namespace lowerd::pool
