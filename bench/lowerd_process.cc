#include "bench/lowerd_process.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include <sys/wait.h>

namespace lowerd::bench {
namespace {

constexpr absl::Duration kStartTime = absl::Seconds(60);

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "lowerd did not start: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace

LowerdProcess::LowerdProcess(const std::vector<std::string>& flags) {
  const std::string address_file = folder_.File("address");
  std::vector<std::string> arguments = {LOWERD_PROGRAM,       "--listen",    "127.0.0.1:0",
                                        "--address-file",     address_file,  "--data-dir",
                                        folder_.File("data"), "--log-level", "warn"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  if (::posix_spawn(&pid_, LOWERD_PROGRAM, nullptr, nullptr, argv.data(), environ) != 0) {
    Fail(LOWERD_PROGRAM);
  }
  const absl::Time end = absl::Now() + kStartTime;
  while (!std::getline(std::ifstream(address_file), address_)) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) Fail("it ended");
    if (absl::Now() > end) Fail("it took too long");
    absl::SleepFor(absl::Milliseconds(10));
  }
}

LowerdProcess::~LowerdProcess() {
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace lowerd::bench
