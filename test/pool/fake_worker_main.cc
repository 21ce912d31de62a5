// A worker whose jobs do what the request's artifact_stem says: the well-behaved, the broken and
// the hostile. Built on the real zygote, sandbox and channel.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <poll.h>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/pool/channel.h"
#include "src/pool/zygote.h"

namespace lowerd::pool {
namespace {

struct Context {
  const internal::Job& job;
  absl::Span<const int> fds;
  ChildHost& host;
};
// What a job says about itself: it becomes the text of the result's warning.
using Action = std::function<std::string(const Context&)>;

// Of a call that the sandbox may refuse: "ok" or the name of the error.
std::string Result(long result) { return result >= 0 ? "ok" : strerrorname_np(errno); }

[[noreturn]] void Hang() {
  while (true) ::poll(nullptr, 0, -1);
}

[[noreturn]] void Spin() {
  volatile uint64_t n = 0;
  while (true) n = n + 1;
}

// Every frame is touched, and the compiler does not see that there is no end.
__attribute__((noinline)) int Recurse(volatile char* above) {
  volatile char frame[4096];
  frame[1] = 0;
  frame[0] = static_cast<char>(above[0] + 1);
  return above[1] == 0 ? Recurse(frame) + frame[0] : 0;
}

std::string OverflowStack(const Context&) {
  volatile char first[4096] = {};
  return absl::StrCat(Recurse(first));
}

void SendProgress(ChildHost& host, v1::LowerModelMetadata::State state, int done, int total) {
  internal::Progress progress;
  progress.set_state(state);
  progress.set_targets_done(done);
  progress.set_targets_total(total);
  host.SendProgress(progress);
}

std::string WriteArtifacts(const Context& context) {
  for (int i = 0; i < context.job.files_size(); ++i) {
    if (context.job.files(i).role() != internal::Job::File::ARTIFACT) continue;
    if (absl::Status status = WriteAll(context.fds[i], "artifact"); !status.ok()) {
      return std::string(status.message());
    }
  }
  return "ok";
}

std::string WriteToInputs(const Context& context) {
  std::vector<std::string> results;
  for (int i = 0; i < context.job.files_size(); ++i) {
    if (context.job.files(i).role() == internal::Job::File::ARTIFACT) continue;
    const int fd = context.fds[i];
    results.push_back(Result(::write(fd, "x", 1)));
    results.push_back(Result(::ftruncate(fd, 0)));
    void* map = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    results.push_back(map == MAP_FAILED ? strerrorname_np(errno) : "ok");
  }
  return absl::StrJoin(results, " ");
}

std::string EatMemory(const Context&) {
  constexpr size_t kChunk = size_t{16} << 20;
  void* last = nullptr;
  while (true) {
    void* chunk =
        ::mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) break;
    std::memset(chunk, 1, kChunk);
    last = chunk;
  }
  // A little is left to report with, as after a failed allocation of a large tensor.
  ::munmap(last, kChunk);
  throw std::bad_alloc();
}

std::string OpenDescriptors(const Context&) {
  std::vector<std::string> open;
  for (int fd = 0; fd < 512; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) open.push_back(absl::StrCat(fd));
  }
  return absl::StrJoin(open, " ");
}

std::string Environment(const Context&) {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    names.push_back(std::string(*variable).substr(0, std::string(*variable).find('=')));
  }
  return absl::StrJoin(names, " ");
}

std::string Flood(const Context& context) {
  for (int i = 0; i < 200'000; ++i) {
    SendProgress(context.host, v1::LowerModelMetadata::LOWERING, i, 200'000);
  }
  return "ok";
}

std::string Say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return "ok";
}

std::string SendRaw(const std::string& bytes) {
  (void)!::send(kControlFd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  Hang();
}

std::string Claim(const Context& context) {
  internal::ClaimNames claims;
  claims.add_claims()->set_base_name("torch.jit.LoweredModule.fake.A");
  claims.add_claims()->set_base_name("torch.jit.LoweredModule.fake.B");
  const auto granted = context.host.ClaimNames(claims);
  if (!granted.ok()) return std::string(granted.status().message());
  return absl::StrJoin(granted->mangle(), " ");
}

std::string StartThread(const Context&) {
  int value = 0;
  std::thread([&value] { value = 42; }).join();
  return absl::StrCat(value);
}

// Writes until it is stopped.
std::string FillArtifact(const Context& context) {
  const int fd = context.fds.back();
  if (::ftruncate(fd, off_t{1} << 50) != 0) return strerrorname_np(errno);
  return "ok";
}

std::string ConnectTo(int family, int type) {
  const int fd = ::socket(family, type, 0);
  return Result(fd);
}

const std::map<std::string, Action>& Actions() {
  static const auto* actions = new std::map<std::string, Action>{
      {"", WriteArtifacts},
      {"echo-files",
       [](const Context& context) {
         std::vector<std::string> out;
         for (int i = 0; i < context.job.files_size(); ++i) {
           const auto bytes = ReadFileToString(context.fds[i], 1 << 20);
           out.push_back(absl::StrCat(context.job.files(i).key(), "=",
                                      bytes.ok() ? *bytes : std::string("unreadable")));
         }
         return absl::StrJoin(out, " ");
       }},
      {"write-inputs", WriteToInputs},
      {"claim", Claim},
      {"claim-twice", [](const Context& c) { return Claim(c) + Claim(c); }},
      {"progress",
       [](const Context& context) {
         SendProgress(context.host, v1::LowerModelMetadata::LOADING, 0, 0);
         SendProgress(context.host, v1::LowerModelMetadata::LOWERING, 1, 2);
         SendProgress(context.host, v1::LowerModelMetadata::SERIALIZING, 2, 2);
         return std::string("ok");
       }},
      {"nice-exit", [](const Context&) -> std::string { ::_exit(3); }},
      {"segv",
       [](const Context&) -> std::string {
         std::raise(SIGSEGV);
         return "alive";
       }},
      {"segv-while-serializing",
       [](const Context& context) -> std::string {
         Say("last words\n");
         (void)WriteArtifacts(context);
         SendProgress(context.host, v1::LowerModelMetadata::SERIALIZING, 0, 0);
         std::raise(SIGSEGV);
         return "alive";
       }},
      {"abort", [](const Context&) -> std::string { std::abort(); }},
      {"kill-self",
       [](const Context&) -> std::string {
         std::raise(SIGKILL);
         return "alive";
       }},
      {"hang",
       [](const Context& c) -> std::string {
         SendProgress(c.host, v1::LowerModelMetadata::LOADING, 0, 0);
         Hang();
       }},
      {"spin",
       [](const Context& c) -> std::string {
         SendProgress(c.host, v1::LowerModelMetadata::LOWERING, 0, 0);
         Spin();
       }},
      {"hang-ignoring-signals",
       [](const Context& c) -> std::string {
         for (int signal = 1; signal < 65; ++signal) ::signal(signal, SIG_IGN);
         SendProgress(c.host, v1::LowerModelMetadata::VERIFYING, 0, 0);
         Hang();
       }},
      {"stack-overflow", OverflowStack},
      {"oom", EatMemory},
      {"fill-artifact", FillArtifact},
      {"flood", Flood},
      {"flood-log",
       [](const Context&) {
         const std::string line(65536, 'x');
         for (int i = 0; i < 500; ++i) Say(line);
         return std::string("ok");
       }},
      {"garbage",
       [](const Context&) { return SendRaw(std::string("\x04\0\0\0\xff\xff\xff\xff", 8)); }},
      {"huge-frame", [](const Context&) { return SendRaw(std::string("\xff\xff\xff\xff", 4)); }},
      {"empty-frame", [](const Context&) { return SendRaw(std::string(4, '\0')); }},
      {"half-frame", [](const Context&) { return SendRaw(std::string("\x10\0\0\0abc", 7)); }},
      {"descriptors", OpenDescriptors},
      {"environment", Environment},
      {"ids",
       [](const Context&) {
         return absl::StrCat(
             ::getuid() == 0 || ::geteuid() == 0 || ::getgid() == 0 ? "root" : "user", " ",
             ::syscall(SYS_getpid) == ::getpid() ? "pid" : "");
       }},
      {"thread", StartThread},

      // What the sandbox must refuse.
      {"read-file", [](const Context&) { return Result(::open("/etc/passwd", O_RDONLY)); }},
      {"read-proc", [](const Context&) { return Result(::open("/proc/self/mem", O_RDONLY)); }},
      {"read-parent-memory",
       [](const Context&) {
         return Result(::open(absl::StrCat("/proc/", ::getppid(), "/mem").c_str(), O_RDONLY));
       }},
      {"list-root", [](const Context&) { return Result(::open("/", O_RDONLY | O_DIRECTORY)); }},
      {"reopen-descriptor",
       [](const Context&) { return Result(::open("/proc/self/fd/0", O_RDONLY)); }},
      {"stat-file", [](const Context&) { return Result(::access("/etc/passwd", R_OK)); }},
      {"openat2",
       [](const Context&) {
         uint64_t how[3] = {O_RDWR, 0, 0};
         return Result(::syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", how, sizeof how));
       }},
      {"write-file",
       [](const Context&) { return Result(::open("/tmp/x", O_WRONLY | O_CREAT, 0600)); }},
      {"create-file", [](const Context&) { return Result(::creat("/tmp/x", 0600)); }},
      {"unlink", [](const Context&) { return Result(::unlink("/tmp/x")); }},
      {"rename", [](const Context&) { return Result(::rename("/tmp/x", "/tmp/y")); }},
      {"mkdir", [](const Context&) { return Result(::mkdir("/tmp/x", 0700)); }},
      {"chmod", [](const Context&) { return Result(::chmod("/etc/passwd", 0777)); }},
      {"tcp-socket", [](const Context&) { return ConnectTo(AF_INET, SOCK_STREAM); }},
      {"udp-socket", [](const Context&) { return ConnectTo(AF_INET, SOCK_DGRAM); }},
      {"unix-socket", [](const Context&) { return ConnectTo(AF_UNIX, SOCK_STREAM); }},
      {"netlink-socket", [](const Context&) { return ConnectTo(AF_NETLINK, SOCK_RAW); }},
      {"exec",
       [](const Context&) {
         char path[] = "/bin/true";
         char* argv[] = {path, nullptr};
         return Result(::execve(path, argv, environ));
       }},
      {"fork", [](const Context&) { return Result(::fork()); }},
      {"vfork", [](const Context&) { return Result(::syscall(SYS_vfork)); }},
      {"fork-bomb",
       [](const Context&) -> std::string {
         while (true) (void)!::fork();
       }},
      {"clone-namespace",
       [](const Context&) {
         return Result(::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
       }},
      {"clone3",
       [](const Context&) {
         uint64_t arguments[8] = {};
         return Result(::syscall(SYS_clone3, arguments, sizeof arguments));
       }},
      {"unshare", [](const Context&) { return Result(::unshare(CLONE_NEWUSER)); }},
      {"kill-parent", [](const Context&) { return Result(::kill(::getppid(), SIGKILL)); }},
      {"kill-group", [](const Context&) { return Result(::kill(-1, SIGKILL)); }},
      {"tgkill-parent",
       [](const Context&) {
         return Result(::syscall(SYS_tgkill, ::getppid(), ::getppid(), SIGKILL));
       }},
      {"queue-signal-to-parent",
       [](const Context&) {
         return Result(::syscall(SYS_rt_sigqueueinfo, ::getppid(), SIGKILL, nullptr));
       }},
      {"own-a-descriptor",
       [](const Context&) { return Result(::fcntl(kControlFd, F_SETOWN, ::getppid())); }},
      {"pidfd-of-parent",
       [](const Context&) { return Result(::syscall(SYS_pidfd_open, ::getppid(), 0)); }},
      {"ptrace-parent",
       [](const Context&) {
         return Result(::ptrace(PTRACE_ATTACH, ::getppid(), nullptr, nullptr));
       }},
      {"process-vm-readv",
       [](const Context&) {
         return Result(::syscall(SYS_process_vm_readv, ::getppid(), nullptr, 0, nullptr, 0, 0));
       }},
      {"bpf", [](const Context&) { return Result(::syscall(SYS_bpf, 0, nullptr, 0)); }},
      {"io-uring",
       [](const Context&) {
         io_uring_params params{};
         return Result(::syscall(SYS_io_uring_setup, 1, &params));
       }},
      {"userfaultfd", [](const Context&) { return Result(::syscall(SYS_userfaultfd, 0)); }},
      {"keyctl", [](const Context&) { return Result(::syscall(SYS_keyctl, 0, 0, 0, 0, 0)); }},
      {"memfd", [](const Context&) { return Result(::memfd_create("x", 0)); }},
      {"setuid", [](const Context&) { return Result(::syscall(SYS_setuid, 0)); }},
      {"raise-limit",
       [](const Context&) {
         rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
         return Result(::setrlimit(RLIMIT_NOFILE, &limit));
       }},
      {"limit-of-parent",
       [](const Context&) {
         rlimit limit{};
         return Result(::prlimit(::getppid(), RLIMIT_NOFILE, &limit, nullptr));
       }},
      {"mount",
       [](const Context&) { return Result(::syscall(SYS_mount, "", "/", "", 0, nullptr)); }},
      {"removed-handler",
       [](const Context&) {
         ::signal(SIGSYS, SIG_IGN);
         return ConnectTo(AF_INET, SOCK_STREAM);
       }},
      {"dump-core",
       [](const Context&) {
         rlimit limit{};
         ::getrlimit(RLIMIT_CORE, &limit);
         return absl::StrCat(limit.rlim_max);
       }},
  };
  return *actions;
}

absl::StatusOr<internal::Done> RunJob(const internal::Job& job, absl::Span<const int> fds,
                                      ChildHost& host) {
  const std::string& action = job.request().artifact_stem();
  if (action == "fail") return MakeError(Reason::kModelCorrupt, "the model is broken");
  if (action == "fail-at-length") {
    return MakeError(Reason::kModelCorrupt, std::string(size_t{1} << 20, 'x'));
  }
  const auto found = Actions().find(action);
  if (found == Actions().end()) {
    return MakeError(Reason::kInvalidRequest, absl::StrCat("no action ", action));
  }
  internal::Done done;
  done.mutable_manifest()->mutable_producer()->set_lowerd_version(
      found->second(Context{job, fds, host}));
  return done;
}

int Main(int argc, char** argv) {
  std::string mode;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::string> parts = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    if (parts[0] == "--backend-lib") mode = parts[1];
  }
  ZygoteProgram program;
  std::unique_ptr<std::thread> second;
  program.load = [&]() -> absl::StatusOr<internal::FromZygote::Ready> {
    if (mode == "broken") return MakeError(Reason::kInvalidRequest, "broken.so cannot be loaded");
    if (mode == "exits") ::_exit(7);
    if (mode == "slow") Hang();
    if (mode == "threads") second = std::make_unique<std::thread>(Hang);
    internal::FromZygote::Ready ready;
    ready.mutable_producer()->set_lowerd_version("fake");
    return ready;
  };
  program.run_job = RunJob;
  const int code = RunZygote(program);
  // A second thread of a test is never joined.
  ::_exit(code);
}

}  // namespace
}  // namespace lowerd::pool

int main(int argc, char** argv) { return lowerd::pool::Main(argc, argv); }
