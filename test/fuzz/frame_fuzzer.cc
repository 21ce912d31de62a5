#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <sys/socket.h>

#include "lowerd/internal/worker.pb.h"
#include "src/pool/channel.h"

// What a hostile job writes to its channel: frames that lowerd takes apart as they come.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto pair = lowerd::pool::Channel::Pair();
  if (!pair.ok()) std::abort();
  auto& [ours, theirs] = *pair;
  lowerd::internal::FromChild message;
  size_t sent = 0, received = 0;
  while (sent < size) {
    const ssize_t n = ::send(theirs.fd(), data + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
    if (!ours.Fill(/*take_fds=*/false).ok()) break;
    while (true) {
      const auto complete = ours.Next(message);
      if (!complete.ok()) return 0;
      if (!*complete) break;
      received += message.ByteSizeLong();
    }
  }
  // No message comes from nothing.
  if (received > 4 * size) __builtin_trap();
  return 0;
}
