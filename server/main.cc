// lowerd, the server.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <malloc.h>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#include "server/config.h"
#include "server/logging.h"
#include "server/server.h"
#include "src/base/error.h"

namespace lowerd::server {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitCannotStart = 1;
// Free memory that each of malloc's arenas keeps.
constexpr int kKeptBytes = 8 << 20;
// Beyond the grace time of a drain.
constexpr absl::Duration kForcedExit = absl::Seconds(15);

int Fail(const absl::Status& status, int exit_code) {
  std::cerr << "lowerd: " << status.message() << "\n";
  return exit_code;
}

// Waits for one of the signals. Until then tells systemd's watchdog, if there is one, that all is
// well for as long as it is.
int AwaitSignal(const sigset_t& signals, const Server& server) {
  uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(0, &watchdog_us) <= 0) {
    int received = 0;
    sigwait(&signals, &received);
    return received;
  }
  const timespec interval = absl::ToTimespec(absl::Microseconds(watchdog_us) / 3);
  while (true) {
    const absl::Status live = server.Live();
    if (live.ok()) {
      sd_notify(0, "WATCHDOG=1");
    } else {
      spdlog::error("not healthy, the watchdog hears nothing: {}", std::string(live.message()));
    }
    const int received = sigtimedwait(&signals, nullptr, &interval);
    if (received > 0) return received;
  }
}

int Main(int argc, char** argv) {
  auto command_line = ParseCommandLine(argc, argv);
  if (absl::IsCancelled(command_line.status())) return 0;
  if (!command_line.ok()) return Fail(command_line.status(), kExitUsage);
  Config& config = command_line->config;
  if (absl::Status status = Complete(config); !status.ok()) return Fail(status, kExitUsage);
  if (command_line->check) {
    std::cout << "lowerd: the configuration is usable\n";
    return 0;
  }
  SetUpLogging(config.log_level, config.log_format);

  // Messages of blob streams come and go by the megabyte. Without this glibc gives their pages back
  // to the kernel each time, which clears them again: a fifth of an upload's time.
  ::mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);

  // Debian builds abseil with its search for lock cycles on, which costs a fifth of a small call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  // A connection is a descriptor, and this gRPC never accepts again once it has run out of them.
  rlimit files;
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }

  // Blocked before any thread starts, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto server = Server::Start(config);
  if (!server.ok()) return Fail(server.status(), kExitCannotStart);
  spdlog::info("serving on {}", (*server)->address());
  if (!(*server)->http_url().empty()) {
    spdlog::info("metrics and status page on {}", (*server)->http_url());
  }
  sd_notifyf(0, "READY=1\nSTATUS=Serving on %s", (*server)->address().c_str());

  int received = AwaitSignal(signals, **server);
  while (received == SIGHUP) {
    (*server)->Reload();
    received = AwaitSignal(signals, **server);
  }
  spdlog::info("{}: draining for at most {}", received == SIGTERM ? "SIGTERM" : "SIGINT",
               absl::FormatDuration(config.drain_grace));
  sd_notify(0, "STOPPING=1");
  // A database that hangs must not keep the process; what was acknowledged is durable.
  // Nor need who asks a second time wait.
  std::thread([grace = config.drain_grace] {
    sigset_t stop;
    sigemptyset(&stop);
    for (const int number : {SIGTERM, SIGINT}) sigaddset(&stop, number);
    const timespec longest = absl::ToTimespec(grace + kForcedExit);
    if (sigtimedwait(&stop, nullptr, &longest) > 0) {
      spdlog::warn("asked to stop again: exiting without the rest of the drain");
    } else {
      spdlog::error("the drain did not end; exiting without it");
    }
    spdlog::shutdown();
    ::_exit(kExitCannotStart);
  }).detach();
  (*server)->Drain(config.drain_grace);
  spdlog::info("stopped");
  return 0;
}

}  // namespace
}  // namespace lowerd::server

int main(int argc, char** argv) { return lowerd::server::Main(argc, argv); }
