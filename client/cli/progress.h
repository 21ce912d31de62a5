#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/longrunning/operations.pb.h"

#include "client/local_file.h"

namespace lowerd::cli {

enum class ProgressStyle {
  kNone,
  // One bar that is drawn over itself; for terminals.
  kBar,
  // One line when a stage begins.
  kLines,
};

// Shows on stderr how far a command is. Thread-safe. Stdout is never touched.
class Progress {
 public:
  explicit Progress(ProgressStyle style) : style_(style) {}
  // Removes the bar, so that what follows begins on a clean line.
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A stage that counts bytes, as "upload". The callback must not outlive this object.
  client::ByteProgress Bytes(std::string stage);
  // Where an operation stands: queue position, phase, targets.
  void Show(const google::longrunning::Operation& operation);
  void Clear();

 private:
  // `fraction` is in 0..1, or negative if it is not known.
  void Draw(absl::string_view stage, double fraction, absl::string_view detail, bool last);

  const ProgressStyle style_;
  absl::Mutex mutex_;
  std::string stage_ ABSL_GUARDED_BY(mutex_);
  absl::Time drawn_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool visible_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lowerd::cli
