#include "src/base/cancellation.h"

#include <cstdint>
#include <system_error>
#include <unistd.h>

#include <sys/eventfd.h>

namespace lowerd {

Cancellation::Cancellation() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Cancellation::Cancel() {
  if (cancelled_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  // Cannot fail: the counter is far from its limit.
  [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
}

}  // namespace lowerd
