#pragma once

#include <functional>
#include <signal.h>
#include <thread>

#include "src/base/cancellation.h"
#include "src/base/fd.h"

namespace lowerd::cli {

// Turns SIGINT and SIGTERM into a call on a thread of its own: the first calls `on_first`, the
// second ends the process with status 5 at once. Make it before any other thread, whose signal mask
// it sets. At most one at a time.
class Interrupt {
 public:
  explicit Interrupt(std::function<void()> on_first);
  // Restores the mask of the calling thread.
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  void Watch(const std::function<void()>& on_first) const;

  sigset_t old_mask_;
  Fd signals_;
  Cancellation stop_;
  std::thread thread_;
};

}  // namespace lowerd::cli
