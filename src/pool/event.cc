#include "src/pool/event.h"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <unistd.h>

#include <sys/eventfd.h>

namespace lowerd::pool {

Event::Event() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Event::Notify() {
  const uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof one);
}

void Event::Clear() {
  uint64_t count;
  (void)!::read(event_.get(), &count, sizeof count);
}

}  // namespace lowerd::pool
