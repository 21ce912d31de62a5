#include "src/pool/zygote.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/pool/channel.h"
#include "src/pool/job_child.h"
#include "src/pool/sandbox.h"

// How sanitizers, where they are built in, behave in workers. Signals end the process, as they do
// without one. Memory that cannot be had is the caller's to report. What a child finds is reported
// by addresses, as the sandbox lets it run no symbolizer. Leaks are not looked for: children leave
// by _exit, and looking needs ptrace.
#if defined(__SANITIZE_ADDRESS__)
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:handle_abort=0:handle_sigill=0:handle_sigbus=0:handle_sigfpe=0:"
         "allocator_may_return_null=1:symbolize=0:abort_on_error=1:detect_leaks=0";
}
#elif defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() {
  return "handle_segv=0:handle_abort=0:handle_sigill=0:handle_sigbus=0:handle_sigfpe=0";
}
#endif

namespace lowerd::pool {
namespace {

constexpr int kExitLost = 1;
constexpr int kExitUsage = 2;

// Deep module trees recurse deeply in libtorch; its default of 8 MiB is too little for thousands
// of nested modules, and no limit at all would make endless recursion eat the machine.
constexpr rlim_t kStackBytes = rlim_t{64} << 20;

int CountThreads() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = ::readdir(tasks)) {
    if (entry->d_name[0] != '.') ++count;
  }
  ::closedir(tasks);
  return count;
}

// So that the kernel, short of memory, ends a job and not lowerd. Best effort.
void OfferToOomKiller() {
  auto file = OpenFile("/proc/self/oom_score_adj", O_WRONLY);
  if (file.ok()) (void)WriteAll(file->get(), "500");
}

void SetUpProcess() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  rlimit stack;
  if (::getrlimit(RLIMIT_STACK, &stack) == 0) {
    stack.rlim_cur = std::min(stack.rlim_max, kStackBytes);
    ::setrlimit(RLIMIT_STACK, &stack);
  }
  ::close_range(kControlFd + 1, ~0U, 0);
  ::fcntl(kControlFd, F_SETFD, FD_CLOEXEC);
  OfferToOomKiller();
}

class Zygote {
 public:
  Zygote(const ZygoteProgram& program, Channel control)
      : program_(program), control_(std::move(control)) {}

  int Run() {
    absl::Status status = Start();
    if (!status.ok()) {
      internal::FromZygote message;
      message.mutable_failed()->ParseFromString(SerializeStatus(status));
      (void)control_.Send(message);
      return kExitLost;
    }
    status = Serve();
    if (status.ok()) return 0;
    std::fprintf(stderr, "lowerd-worker: %s\n", std::string(status.message()).c_str());
    return kExitLost;
  }

 private:
  absl::Status Start() {
    LOWERD_ASSIGN_OR_RETURN(internal::FromZygote::Ready ready, program_.load());
    if (const int threads = CountThreads(); threads != 1) {
      return MakeError(Reason::kInternalError,
                       absl::StrCat("the worker has ", threads,
                                    " threads after loading its libraries, so that it cannot fork "
                                    "safely; a backend or operator library starts threads when it "
                                    "is loaded"));
    }
    LOWERD_ASSIGN_OR_RETURN(Sandbox sandbox, Sandbox::Prepare());
    sandbox_ = std::make_unique<Sandbox>(std::move(sandbox));
    for (const std::string& layer : sandbox_->in_force()) ready.add_sandbox_layers(layer);
    for (const std::string& layer : sandbox_->missing()) ready.add_sandbox_missing(layer);

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    child_signal_ = Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!child_signal_.valid()) return ErrnoError(errno, "watching for the end of children");

    internal::FromZygote message;
    *message.mutable_ready() = std::move(ready);
    return control_.Send(message);
  }

  // OK when lowerd is gone.
  absl::Status Serve() {
    while (true) {
      pollfd polled[] = {{control_.fd(), POLLIN, 0}, {child_signal_.get(), POLLIN, 0}};
      if (::poll(polled, std::size(polled), -1) < 0 && errno != EINTR) {
        return ErrnoError(errno, "waiting for work");
      }
      if (polled[1].revents != 0) LOWERD_RETURN_IF_ERROR(ReportExits());
      if (polled[0].revents == 0) continue;
      const absl::Status filled = control_.Fill(/*take_fds=*/true);
      internal::ToZygote request;
      while (true) {
        LOWERD_ASSIGN_OR_RETURN(const bool complete, control_.Next(request));
        if (!complete) break;
        if (request.has_fork()) LOWERD_RETURN_IF_ERROR(Fork(request.fork().child_id()));
      }
      if (!filled.ok()) return absl::OkStatus();
    }
  }

  absl::Status Fork(uint64_t child_id) {
    LOWERD_ASSIGN_OR_RETURN(std::vector<Fd> fds, control_.TakeFds(2));
    const pid_t self = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(RunJobChild(program_, *sandbox_, self, std::move(fds[0]), std::move(fds[1])));
    }
    internal::FromZygote message;
    if (child < 0) {
      // lowerd sees the child's channel close, waits and asks again.
      message.mutable_exited()->set_child_id(child_id);
      message.mutable_exited()->set_wait_status(kForkFailed);
      return control_.Send(message);
    }
    const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    if (!pidfd.valid()) return ErrnoError(errno, "opening a pidfd");
    children_[child] = child_id;
    message.mutable_forked()->set_child_id(child_id);
    message.mutable_forked()->set_pid(child);
    const int pidfd_number = pidfd.get();
    return control_.Send(message, {&pidfd_number, 1});
  }

  absl::Status ReportExits() {
    signalfd_siginfo drained[16];
    while (::read(child_signal_.get(), drained, sizeof drained) > 0) {
    }
    while (true) {
      int wait_status = 0;
      rusage usage{};
      const pid_t pid = ::wait4(-1, &wait_status, WNOHANG, &usage);
      if (pid <= 0) return absl::OkStatus();
      const auto child = children_.find(pid);
      if (child == children_.end()) continue;
      internal::FromZygote message;
      internal::FromZygote::Exited& exited = *message.mutable_exited();
      exited.set_child_id(child->second);
      exited.set_wait_status(wait_status);
      exited.set_max_rss_bytes(int64_t{usage.ru_maxrss} * 1024);
      exited.set_cpu_micros((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * int64_t{1'000'000} +
                            usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
      children_.erase(child);
      LOWERD_RETURN_IF_ERROR(control_.Send(message));
    }
  }

  const ZygoteProgram& program_;
  Channel control_;
  std::unique_ptr<Sandbox> sandbox_;
  Fd child_signal_;
  std::map<pid_t, uint64_t> children_;
};

}  // namespace

int RunZygote(const ZygoteProgram& program) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(kControlFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    std::fprintf(stderr, "lowerd-worker is started by lowerd, not by hand\n");
    return kExitUsage;
  }
  SetUpProcess();
  return Zygote(program, Channel(Fd(kControlFd))).Run();
}

}  // namespace lowerd::pool
