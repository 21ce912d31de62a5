#include "src/pool/sandbox.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "src/base/error.h"

namespace lowerd::pool {
namespace {

// Debian's "nobody", and the kernel's overflow id everywhere.
constexpr uid_t kNobody = 65534;
// The job's files and a few of its own.
constexpr rlim_t kMaxOpenFiles = 512;
// Counts all processes and threads of the user, so it only stops a flood.
constexpr rlim_t kMaxThreads = 4096;

// The kernel's landlock_ruleset_attr, here because build hosts may have older headers than the
// kernel that runs us. Older kernels take a prefix of it.
struct LandlockRuleset {
  uint64_t handled_access_fs;
  uint64_t handled_access_net;
  uint64_t scoped;
};
constexpr unsigned kLandlockVersionQuery = 1;

// All access rights of a Landlock ABI, and the size of its structure.
std::pair<LandlockRuleset, size_t> EverythingHandled(int abi) {
  const int file_rights = abi >= 5 ? 16 : abi >= 3 ? 15 : abi == 2 ? 14 : 13;
  LandlockRuleset ruleset{};
  ruleset.handled_access_fs = (uint64_t{1} << file_rights) - 1;
  if (abi < 4) return {ruleset, sizeof ruleset.handled_access_fs};
  ruleset.handled_access_net = 0b11;  // Bind and connect over TCP.
  if (abi < 6) return {ruleset, 2 * sizeof(uint64_t)};
  ruleset.scoped = 0b11;  // Abstract sockets and signals.
  return {ruleset, sizeof ruleset};
}

int SetLimit(int resource, rlim_t value) {
  rlimit limit;
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return errno;
  limit.rlim_max = std::min(limit.rlim_max, value);
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 ? 0 : errno;
}

int LimitResources() {
  const std::pair<int, rlim_t> limits[] = {{RLIMIT_CORE, 0},
                                           {RLIMIT_MEMLOCK, 0},
                                           {RLIMIT_MSGQUEUE, 0},
                                           {RLIMIT_NOFILE, kMaxOpenFiles},
                                           {RLIMIT_NPROC, kMaxThreads}};
  for (const auto& [resource, value] : limits) {
    if (const int error = SetLimit(resource, value); error != 0) return error;
  }
  return 0;
}

int BecomeNobody() {
  if (::geteuid() != 0) return 0;
  if (::setgroups(0, nullptr) != 0) return errno;
  if (::setresgid(kNobody, kNobody, kNobody) != 0) return errno;
  if (::setresuid(kNobody, kNobody, kNobody) != 0) return errno;
  return 0;
}

int DropCapabilities() {
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return errno;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  return ::syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

// The session is the child's own, so that no terminal reaches it; it leaves no dumps, also to a
// handler program; it ends with its parent.
int OwnSession(int parent_pid) {
  if (::setsid() < 0 && ::getsid(0) != ::getpid()) return errno;
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return errno;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) return errno;
  // The parent may have died before the call above.
  return ::getppid() == parent_pid ? 0 : ESRCH;
}

absl::StatusOr<int64_t> AddressSpaceInUse() {
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoError(errno, "/proc/self/statm");
  char text[128] = {};
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  const long long pages = n > 0 ? std::strtoll(text, nullptr, 10) : 0;
  if (pages <= 0) {
    return MakeError(Reason::kInternalError, "/proc/self/statm does not tell the memory in use");
  }
  return int64_t{pages} * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

std::string Sandbox::Name(Layer layer) const {
  switch (layer) {
    case Layer::kSession:
      return "own-session";
    case Layer::kUnprivilegedUser:
      return "unprivileged-user";
    case Layer::kNoNewPrivileges:
      return "no-new-privileges";
    case Layer::kNoCapabilities:
      return "no-capabilities";
    case Layer::kLandlock:
      return landlock_abi_ > 0 ? absl::StrCat("landlock-abi-", landlock_abi_) : "landlock";
    case Layer::kResourceLimits:
      return "resource-limits";
    case Layer::kSeccomp:
      return "seccomp";
  }
  return "";
}

int Sandbox::Apply(Layer layer, int parent_pid) const {
  switch (layer) {
    case Layer::kSession:
      return OwnSession(parent_pid);
    case Layer::kUnprivilegedUser:
      return BecomeNobody();
    case Layer::kNoNewPrivileges:
      return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : errno;
    case Layer::kNoCapabilities:
      return DropCapabilities();
    case Layer::kLandlock:
      if (landlock_error_ != 0) return landlock_error_;
      return ::syscall(SYS_landlock_restrict_self, landlock_ruleset_.get(), 0) == 0 ? 0 : errno;
    case Layer::kResourceLimits:
      return LimitResources();
    case Layer::kSeccomp:
      return filter_.has_value() ? filter_->Install() : ENOSYS;
  }
  return EINVAL;
}

absl::StatusOr<Sandbox> Sandbox::Prepare() {
  Sandbox sandbox;
  const long abi = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, kLandlockVersionQuery);
  if (abi > 0) {
    sandbox.landlock_abi_ = static_cast<int>(abi);
    const auto [ruleset, size] = EverythingHandled(sandbox.landlock_abi_);
    sandbox.landlock_ruleset_ =
        Fd(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &ruleset, size, 0)));
  }
  if (!sandbox.landlock_ruleset_.valid()) sandbox.landlock_error_ = errno;
  if (auto filter = SyscallFilter::Compile(); filter.ok()) {
    sandbox.filter_ = *std::move(filter);
  } else {
    sandbox.filter_error_ = std::string(filter.status().message());
  }

  LOWERD_ASSIGN_OR_RETURN(const std::vector<Attempt> attempts, sandbox.Probe());
  for (const auto& [layer, error_number] : attempts) {
    if (error_number == 0) {
      sandbox.layers_.push_back(layer);
      sandbox.in_force_.push_back(sandbox.Name(layer));
    } else if (layer == Layer::kUnprivilegedUser) {
      // A user namespace may hold no other user; without capabilities its root is as harmless.
      continue;
    } else if (layer == Layer::kSeccomp && !sandbox.filter_error_.empty()) {
      sandbox.missing_.push_back(absl::StrCat("seccomp: ", sandbox.filter_error_));
    } else {
      sandbox.missing_.push_back(
          absl::StrCat(sandbox.Name(layer), ": ", std::strerror(error_number)));
    }
  }
  return sandbox;
}

// Tries all layers in a child, and whether the filter really stops a call: the child's last one.
absl::StatusOr<std::vector<Sandbox::Attempt>> Sandbox::Probe() const {
  constexpr Layer kOrder[] = {
      // Changing the user clears the wish to die with the parent, so it comes first.
      Layer::kUnprivilegedUser, Layer::kSession,  Layer::kNoNewPrivileges,
      Layer::kNoCapabilities,   Layer::kLandlock, Layer::kResourceLimits,
      Layer::kSeccomp};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "probing the sandbox");
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return ErrnoError(errno, "probing the sandbox");
  if (child == 0) {
    for (const Layer layer : kOrder) {
      // Announced before, so that a layer that kills its process is known too.
      Attempt attempt{layer, EINTR};
      (void)!::write(write_end.get(), &attempt, sizeof attempt);
      attempt.error_number = Apply(layer, parent);
      (void)!::write(write_end.get(), &attempt, sizeof attempt);
    }
    ::signal(SIGSYS, SIG_DFL);
    ::syscall(SYS_socket, 0, 0, 0);
    ::_exit(0);
  }
  write_end.Reset();
  std::vector<Attempt> attempts;
  Attempt attempt;
  while (::read(read_end.get(), &attempt, sizeof attempt) == sizeof attempt) {
    if (!attempts.empty() && attempts.back().layer == attempt.layer) {
      attempts.back() = attempt;
    } else {
      attempts.push_back(attempt);
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const bool stopped = WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
  if (attempts.size() != std::size(kOrder)) {
    return MakeError(Reason::kInternalError, "the probe of the sandbox ended early");
  }
  if (attempts.back().error_number == 0 && !stopped) attempts.back().error_number = ENOTSUP;
  return attempts;
}

absl::StatusOr<int64_t> Sandbox::Enter(int zygote_pid) const {
  LOWERD_ASSIGN_OR_RETURN(const int64_t base, AddressSpaceInUse());
  for (const Layer layer : layers_) {
    if (layer == Layer::kSeccomp) InstallSigsysReport();
    if (const int error_number = Apply(layer, zygote_pid); error_number != 0) {
      return ErrnoError(error_number, absl::StrCat("entering the sandbox, ", Name(layer)));
    }
  }
  return base;
}

absl::Status LimitJob(const JobLimits& limits, int64_t base_address_space) {
  const std::pair<int, int64_t> values[] = {
      {RLIMIT_AS, limits.memory_bytes > 0 ? base_address_space + limits.memory_bytes : 0},
      {RLIMIT_CPU, limits.cpu_seconds},
      {RLIMIT_FSIZE, limits.file_bytes}};
  for (const auto& [resource, value] : values) {
    if (value <= 0) continue;
    if (const int error_number = SetLimit(resource, static_cast<rlim_t>(value));
        error_number != 0) {
      return ErrnoError(error_number, "limiting a job's resources");
    }
  }
  return absl::OkStatus();
}

}  // namespace lowerd::pool
