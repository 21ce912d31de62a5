// lowerd, the server.

#include <cstdio>
#include <iostream>
#include <signal.h>

#include "absl/synchronization/mutex.h"
#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>

#include "server/config.h"
#include "server/logging.h"
#include "server/server.h"
#include "src/base/error.h"

namespace lowerd::server {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitCannotStart = 1;

int Fail(const absl::Status& status, int exit_code) {
  std::cerr << "lowerd: " << status.message() << "\n";
  return exit_code;
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
  SetUpLogging(config.log_level, config.log_json);

  // Debian builds abseil with its search for lock cycles on, which costs a fifth of a small call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  // Blocked before any thread starts, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto server = Server::Start(config);
  if (!server.ok()) return Fail(server.status(), kExitCannotStart);
  spdlog::info("serving on {}", (*server)->address());
  sd_notifyf(0, "READY=1\nSTATUS=Serving on %s", (*server)->address().c_str());

  int received = 0;
  while (sigwait(&signals, &received) == 0 && received == SIGHUP) (*server)->Reload();
  spdlog::info("{}: draining for at most {}", received == SIGTERM ? "SIGTERM" : "SIGINT",
               absl::FormatDuration(config.drain_grace));
  sd_notify(0, "STOPPING=1");
  (*server)->Drain(config.drain_grace);
  spdlog::info("stopped");
  return 0;
}

}  // namespace
}  // namespace lowerd::server

int main(int argc, char** argv) { return lowerd::server::Main(argc, argv); }
