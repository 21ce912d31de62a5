#include "src/pool/worker_process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#include "src/base/error.h"
#include "src/pool/zygote.h"

namespace lowerd::pool {
namespace {

// A process that has closed its channel is about to end.
constexpr int kGraceMillis = 1000;

// Threads would make the zygote unable to fork, so that numeric libraries get one.
constexpr const char* kFixedEnvironment[] = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1",
                                             "MKL_NUM_THREADS=1", "GOTO_NUM_THREADS=1",
                                             "LC_ALL=C.UTF-8"};
// What an operator may set on purpose: how OpenBLAS sees the processor, and how sanitizers report.
constexpr const char* kKeptVariables[] = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "ASAN_OPTIONS",
                                          "UBSAN_OPTIONS"};

// Empty libraries in place of those that libtorch lists and does not use; beside the program
// (cmake/UnusedLibraries.cmake).
constexpr const char* kUnusedLibraries = "unused_libraries";

// Where the worker's libraries are looked for, before the system's folders: where the operator
// says, so that a backend which does use one of the libraries left out can have it, and then among
// the empty ones.
std::string LibraryPath(const std::string& program) {
  const char* own = std::getenv("LD_LIBRARY_PATH");
  const std::string path = own == nullptr ? "" : own;
  const std::string unused =
      (std::filesystem::absolute(program).parent_path() / kUnusedLibraries).string();
  return path.empty() ? unused : absl::StrCat(path, ":", unused);
}

std::vector<std::string> Environment(const std::string& program) {
  std::vector<std::string> out(std::begin(kFixedEnvironment), std::end(kFixedEnvironment));
  for (const char* name : kKeptVariables) {
    if (const char* value = std::getenv(name)) out.push_back(absl::StrCat(name, "=", value));
  }
  out.push_back(absl::StrCat("LD_LIBRARY_PATH=", LibraryPath(program)));
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& string : strings) out.push_back(string.data());
  out.push_back(nullptr);
  return out;
}

// posix_spawn's two helpers with the life time of an object.
struct SpawnSettings {
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

absl::StatusOr<WorkerProcess> WorkerProcess::Start(const std::string& program,
                                                   const std::vector<std::string>& arguments) {
  LOWERD_ASSIGN_OR_RETURN(auto ends, Channel::Pair());
  SpawnSettings settings;
  ::posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&settings.actions, STDERR_FILENO, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&settings.actions, ends.second.fd(), kControlFd);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&settings.attributes, &none);
  ::posix_spawnattr_setsigdefault(&settings.attributes, &all);
  ::posix_spawnattr_setflags(&settings.attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);

  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = Environment(program);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &settings.actions, &settings.attributes,
                                  Pointers(argv).data(), Pointers(environment).data());
  if (error != 0) return ErrnoError(error, absl::StrCat("starting ", program));
  // Nobody else waits for this child, so that its id still means it.
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const int error_number = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return ErrnoError(error_number, "opening a pidfd of the worker (needs Linux 5.3)");
  }
  return WorkerProcess(std::move(pidfd), std::move(ends.first));
}

WorkerProcess::~WorkerProcess() {
  if (!pidfd_.valid()) return;
  Kill();
  WaitForEnd();
}

void WorkerProcess::Kill() { ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

std::string WorkerProcess::WaitForEnd() {
  if (!pidfd_.valid()) return "its end";
  pollfd polled = {pidfd_.get(), POLLIN, 0};
  if (::poll(&polled, 1, kGraceMillis) == 0) Kill();
  siginfo_t info{};
  while (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) != 0) {
    if (errno != EINTR) break;
  }
  pidfd_.Reset();
  if (info.si_code == CLD_EXITED) return absl::StrCat("exit code ", info.si_status);
  return DescribeSignal(info.si_status);
}

std::string DescribeSignal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  const char* text = ::sigdescr_np(signal);
  return absl::StrCat("signal ", name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat(signal),
                      text != nullptr ? absl::StrCat(" (", text, ")") : "");
}

}  // namespace lowerd::pool
