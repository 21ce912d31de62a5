#pragma once

#include <atomic>

#include "src/base/fd.h"

namespace lowerd {

// A wish to stop, made once and seen by whoever looks or polls. Thread-safe. The one who can cancel
// and the one who works share it by shared_ptr.
class Cancellation {
 public:
  Cancellation();

  // Idempotent; async-signal-safe.
  void Cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  // Becomes and stays readable (POLLIN) when cancelled. Do not read from it. Owned by this object.
  int fd() const { return event_.get(); }

 private:
  std::atomic<bool> cancelled_ = false;
  Fd event_;
};

}  // namespace lowerd
