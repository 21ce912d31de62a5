#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "src/pool/event.h"
#include "src/pool/wait.h"

namespace lowerd::pool {

// Lets jobs in, first come, first served, while a slot is free and their estimated memory fits
// beside that of the jobs that run: many large jobs wait instead of making the machine swap.
// A job too large for the budget runs alone. Thread-safe.
class Admission {
 public:
  // `memory_budget` in bytes.
  Admission(int slots, int64_t memory_budget);

  // A place among the running jobs; gives it back at destruction. Must not outlive the Admission.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&&) = delete;
    ~Ticket();

   private:
    friend class Admission;
    Ticket(Admission* admission, int64_t memory) : admission_(admission), memory_(memory) {}
    Admission* admission_;
    int64_t memory_;
  };

  // Waits for a place. Errors: Patience's; SERVER_UNAVAILABLE once closed.
  absl::StatusOr<Ticket> Enter(int64_t memory, const Patience& patience);

  // Lets nobody in any more, also those who wait.
  void Close();

  int busy() const;

 private:
  struct Waiter {
    int64_t memory;
    bool admitted = false;
    Event event;
  };

  void AdmitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(int64_t memory);

  const int slots_;
  const int64_t memory_budget_;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t memory_in_use_ ABSL_GUARDED_BY(mutex_) = 0;
  // Borrowed from the callers that wait.
  std::deque<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);
};

// What jobs may use in all: four fifths of the machine's memory or of the tightest memory cgroup
// around this process, in bytes.
int64_t DetectMemoryBudget();

}  // namespace lowerd::pool
