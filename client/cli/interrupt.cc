#include "client/cli/interrupt.h"

#include <cerrno>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <sys/signalfd.h>

#include "client/cli/exit_status.h"

namespace lowerd::cli {

Interrupt::Interrupt(std::function<void()> on_first) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  signals_ = Fd(signalfd(-1, &mask, SFD_CLOEXEC));
  thread_ = std::thread([this, on_first = std::move(on_first)] { Watch(on_first); });
}

Interrupt::~Interrupt() {
  stop_.Cancel();
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void Interrupt::Watch(const std::function<void()>& on_first) const {
  bool interrupted = false;
  pollfd polled[] = {{.fd = signals_.get(), .events = POLLIN},
                     {.fd = stop_.fd(), .events = POLLIN}};
  while (true) {
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    if (interrupted) _exit(kExitFailed);
    interrupted = true;
    on_first();
  }
}

}  // namespace lowerd::cli
