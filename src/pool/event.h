#pragma once

#include "src/base/fd.h"

namespace lowerd::pool {

// Something that happens once and can be polled for together with descriptors. Thread-safe.
class Event {
 public:
  // Throws std::system_error where the process is out of descriptors.
  Event();

  // Idempotent.
  void Notify();
  // Takes notifications back, for a waiter that goes on to wait for the next.
  void Clear();
  // Becomes readable (POLLIN) when notified. Owned by this object.
  int fd() const { return event_.get(); }

 private:
  Fd event_;
};

}  // namespace lowerd::pool
