#include "src/pool/admission.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"

namespace lowerd::pool {

Admission::Admission(int slots, int64_t memory_budget)
    : slots_(slots), memory_budget_(memory_budget) {}

Admission::Ticket::Ticket(Ticket&& other) noexcept
    : admission_(std::exchange(other.admission_, nullptr)), memory_(other.memory_) {}

Admission::Ticket::~Ticket() {
  if (admission_ != nullptr) admission_->Leave(memory_);
}

absl::StatusOr<Admission::Ticket> Admission::Enter(int64_t memory, const Patience& patience) {
  Waiter waiter{std::min(memory, memory_budget_)};
  {
    absl::MutexLock lock(&mutex_);
    waiters_.push_back(&waiter);
    AdmitLocked();
  }
  while (true) {
    absl::Status patient = patience.Check("waiting for a worker");
    {
      absl::MutexLock lock(&mutex_);
      if (waiter.admitted && patient.ok()) return Ticket(this, waiter.memory);
      if (closed_) {
        patient = MakeError(Reason::kServerUnavailable, "the server is stopping");
      }
      if (!patient.ok()) {
        if (waiter.admitted) {
          --busy_;
          memory_in_use_ -= waiter.memory;
        } else {
          waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &waiter));
        }
        // Who was behind may fit now.
        AdmitLocked();
        return patient;
      }
    }
    pollfd polled[] = {{waiter.event.fd(), POLLIN, 0}};
    Poll(polled, patience);
  }
}

void Admission::AdmitLocked() {
  while (!closed_ && !waiters_.empty() && busy_ < slots_) {
    Waiter& next = *waiters_.front();
    if (memory_in_use_ + next.memory > memory_budget_) return;
    waiters_.pop_front();
    ++busy_;
    memory_in_use_ += next.memory;
    next.admitted = true;
    next.event.Notify();
  }
}

void Admission::Leave(int64_t memory) {
  absl::MutexLock lock(&mutex_);
  --busy_;
  memory_in_use_ -= memory;
  AdmitLocked();
}

void Admission::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  for (Waiter* waiter : waiters_) waiter->event.Notify();
}

int Admission::busy() const {
  absl::MutexLock lock(&mutex_);
  return busy_;
}

}  // namespace lowerd::pool
