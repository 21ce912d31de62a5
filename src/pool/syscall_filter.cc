#include "src/pool/syscall_filter.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "src/base/error.h"
#include "src/base/fd.h"

namespace lowerd::pool {
namespace {

struct Syscall {
  int number;
  const char* name;
};
#define LOWERD_SYSCALL(name) \
  { SCMP_SYS(name), #name }

// Work on memory, threads, time and open descriptors.
constexpr Syscall kAllowed[] = {
    // Memory.
    LOWERD_SYSCALL(brk), LOWERD_SYSCALL(mmap), LOWERD_SYSCALL(munmap), LOWERD_SYSCALL(mremap),
    LOWERD_SYSCALL(mprotect), LOWERD_SYSCALL(madvise), LOWERD_SYSCALL(mincore),
    LOWERD_SYSCALL(msync), LOWERD_SYSCALL(membarrier),
    // Open descriptors.
    LOWERD_SYSCALL(read), LOWERD_SYSCALL(readv), LOWERD_SYSCALL(pread64), LOWERD_SYSCALL(preadv),
    LOWERD_SYSCALL(write), LOWERD_SYSCALL(writev), LOWERD_SYSCALL(pwrite64),
    LOWERD_SYSCALL(pwritev), LOWERD_SYSCALL(lseek), LOWERD_SYSCALL(fstat),
    LOWERD_SYSCALL(ftruncate), LOWERD_SYSCALL(fallocate), LOWERD_SYSCALL(fsync),
    LOWERD_SYSCALL(fdatasync), LOWERD_SYSCALL(fadvise64), LOWERD_SYSCALL(copy_file_range),
    LOWERD_SYSCALL(sendfile), LOWERD_SYSCALL(close), LOWERD_SYSCALL(close_range),
    LOWERD_SYSCALL(dup), LOWERD_SYSCALL(dup2), LOWERD_SYSCALL(dup3), LOWERD_SYSCALL(poll),
    LOWERD_SYSCALL(ppoll), LOWERD_SYSCALL(select), LOWERD_SYSCALL(pselect6),
    // The channel to lowerd.
    LOWERD_SYSCALL(sendmsg), LOWERD_SYSCALL(recvmsg), LOWERD_SYSCALL(sendto),
    LOWERD_SYSCALL(recvfrom),
    // Threads; new ones only by the rule on clone below.
    LOWERD_SYSCALL(futex), LOWERD_SYSCALL(set_robust_list), LOWERD_SYSCALL(get_robust_list),
    LOWERD_SYSCALL(rseq), LOWERD_SYSCALL(set_tid_address), LOWERD_SYSCALL(sched_yield),
    LOWERD_SYSCALL(sched_getaffinity), LOWERD_SYSCALL(sched_getparam),
    LOWERD_SYSCALL(sched_getscheduler), LOWERD_SYSCALL(getcpu), LOWERD_SYSCALL(arch_prctl),
    // Signals of its own.
    LOWERD_SYSCALL(rt_sigaction), LOWERD_SYSCALL(rt_sigprocmask), LOWERD_SYSCALL(rt_sigreturn),
    LOWERD_SYSCALL(rt_sigpending), LOWERD_SYSCALL(sigaltstack), LOWERD_SYSCALL(restart_syscall),
    // Time, randomness, facts about the machine and itself.
    LOWERD_SYSCALL(clock_gettime), LOWERD_SYSCALL(clock_getres), LOWERD_SYSCALL(clock_nanosleep),
    LOWERD_SYSCALL(nanosleep), LOWERD_SYSCALL(gettimeofday), LOWERD_SYSCALL(time),
    LOWERD_SYSCALL(times), LOWERD_SYSCALL(getrusage), LOWERD_SYSCALL(getrandom),
    LOWERD_SYSCALL(uname), LOWERD_SYSCALL(sysinfo), LOWERD_SYSCALL(getpid), LOWERD_SYSCALL(getppid),
    LOWERD_SYSCALL(gettid), LOWERD_SYSCALL(getuid), LOWERD_SYSCALL(geteuid), LOWERD_SYSCALL(getgid),
    LOWERD_SYSCALL(getegid), LOWERD_SYSCALL(getrlimit), LOWERD_SYSCALL(exit),
    LOWERD_SYSCALL(exit_group)};

// What names a file: refused as if the file system were not readable.
constexpr Syscall kNoAccess[] = {
    LOWERD_SYSCALL(open),     LOWERD_SYSCALL(openat),  LOWERD_SYSCALL(openat2),
    LOWERD_SYSCALL(stat),     LOWERD_SYSCALL(lstat),   LOWERD_SYSCALL(statx),
    LOWERD_SYSCALL(access),   LOWERD_SYSCALL(statfs),  LOWERD_SYSCALL(faccessat),
    LOWERD_SYSCALL(readlink), LOWERD_SYSCALL(getcwd),  LOWERD_SYSCALL(faccessat2),
    LOWERD_SYSCALL(chdir),    LOWERD_SYSCALL(fstatfs), LOWERD_SYSCALL(readlinkat)};

// What no job does.
constexpr Syscall kForbidden[] = {
    // Other programs and processes.
    LOWERD_SYSCALL(execve), LOWERD_SYSCALL(execveat), LOWERD_SYSCALL(fork), LOWERD_SYSCALL(vfork),
    LOWERD_SYSCALL(ptrace), LOWERD_SYSCALL(process_vm_readv), LOWERD_SYSCALL(process_vm_writev),
    LOWERD_SYSCALL(process_madvise), LOWERD_SYSCALL(kcmp), LOWERD_SYSCALL(kill),
    LOWERD_SYSCALL(tkill), LOWERD_SYSCALL(rt_sigqueueinfo), LOWERD_SYSCALL(rt_tgsigqueueinfo),
    LOWERD_SYSCALL(pidfd_open), LOWERD_SYSCALL(pidfd_getfd), LOWERD_SYSCALL(pidfd_send_signal),
    LOWERD_SYSCALL(setpriority), LOWERD_SYSCALL(sched_setscheduler), LOWERD_SYSCALL(setpgid),
    LOWERD_SYSCALL(setsid),
    // The network, and other channels between processes.
    LOWERD_SYSCALL(socket), LOWERD_SYSCALL(socketpair), LOWERD_SYSCALL(bind),
    LOWERD_SYSCALL(listen), LOWERD_SYSCALL(accept), LOWERD_SYSCALL(accept4),
    LOWERD_SYSCALL(connect), LOWERD_SYSCALL(shmget), LOWERD_SYSCALL(shmat), LOWERD_SYSCALL(msgget),
    LOWERD_SYSCALL(semget), LOWERD_SYSCALL(mq_open),
    // Changes to the file system.
    LOWERD_SYSCALL(creat), LOWERD_SYSCALL(truncate), LOWERD_SYSCALL(unlink),
    LOWERD_SYSCALL(unlinkat), LOWERD_SYSCALL(rename), LOWERD_SYSCALL(renameat),
    LOWERD_SYSCALL(renameat2), LOWERD_SYSCALL(link), LOWERD_SYSCALL(linkat),
    LOWERD_SYSCALL(symlink), LOWERD_SYSCALL(symlinkat), LOWERD_SYSCALL(mkdir),
    LOWERD_SYSCALL(mkdirat), LOWERD_SYSCALL(rmdir), LOWERD_SYSCALL(mknod), LOWERD_SYSCALL(mknodat),
    LOWERD_SYSCALL(chmod), LOWERD_SYSCALL(fchmod), LOWERD_SYSCALL(fchmodat), LOWERD_SYSCALL(chown),
    LOWERD_SYSCALL(fchown), LOWERD_SYSCALL(lchown), LOWERD_SYSCALL(fchownat),
    LOWERD_SYSCALL(setxattr), LOWERD_SYSCALL(lsetxattr), LOWERD_SYSCALL(fsetxattr),
    LOWERD_SYSCALL(mount), LOWERD_SYSCALL(umount2), LOWERD_SYSCALL(pivot_root),
    LOWERD_SYSCALL(chroot), LOWERD_SYSCALL(open_by_handle_at), LOWERD_SYSCALL(move_mount),
    LOWERD_SYSCALL(open_tree), LOWERD_SYSCALL(fsopen), LOWERD_SYSCALL(fsmount),
    // Privileges, namespaces, and the kernel's larger surfaces.
    LOWERD_SYSCALL(unshare), LOWERD_SYSCALL(setns), LOWERD_SYSCALL(setuid), LOWERD_SYSCALL(setgid),
    LOWERD_SYSCALL(setresuid), LOWERD_SYSCALL(setresgid), LOWERD_SYSCALL(setgroups),
    LOWERD_SYSCALL(capset), LOWERD_SYSCALL(bpf), LOWERD_SYSCALL(perf_event_open),
    LOWERD_SYSCALL(userfaultfd), LOWERD_SYSCALL(io_uring_setup), LOWERD_SYSCALL(io_uring_enter),
    LOWERD_SYSCALL(io_uring_register), LOWERD_SYSCALL(keyctl), LOWERD_SYSCALL(add_key),
    LOWERD_SYSCALL(request_key), LOWERD_SYSCALL(init_module), LOWERD_SYSCALL(finit_module),
    LOWERD_SYSCALL(delete_module), LOWERD_SYSCALL(kexec_load), LOWERD_SYSCALL(reboot),
    LOWERD_SYSCALL(swapon), LOWERD_SYSCALL(iopl), LOWERD_SYSCALL(ioperm),
    LOWERD_SYSCALL(settimeofday), LOWERD_SYSCALL(clock_settime), LOWERD_SYSCALL(modify_ldt),
    LOWERD_SYSCALL(personality), LOWERD_SYSCALL(acct), LOWERD_SYSCALL(syslog),
    LOWERD_SYSCALL(quotactl), LOWERD_SYSCALL(fanotify_init), LOWERD_SYSCALL(vmsplice)};
#undef LOWERD_SYSCALL

// Stands for the child's own process id in the compiled program, until Install.
constexpr uint32_t kPidPlaceholder = 0x7ead10ad;
constexpr int kPrSetVma = 0x53564d41;  // PR_SET_VMA: newer allocators name their memory.

// Collects the first error of many libseccomp calls, so that the rules read as a list.
class Rules {
 public:
  Rules() : context_(seccomp_init(SCMP_ACT_ERRNO(ENOSYS))) {
    if (context_ == nullptr) error_ = -ENOMEM;
  }
  ~Rules() {
    if (context_ != nullptr) seccomp_release(context_);
  }
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;

  template <typename... Arguments>
  void Add(uint32_t action, int syscall, Arguments... arguments) {
    if (error_ != 0) return;
    const scmp_arg_cmp compare[] = {arguments..., scmp_arg_cmp{}};
    Check(seccomp_rule_add_array(context_, action, syscall, sizeof...(arguments), compare));
  }
  void Set(scmp_filter_attr attribute, uint32_t value) {
    if (error_ == 0) Check(seccomp_attr_set(context_, attribute, value));
  }
  void Export(int fd) {
    if (error_ == 0) Check(seccomp_export_bpf(context_, fd));
  }
  int error() const { return -error_; }

 private:
  void Check(int result) {
    if (result < 0) error_ = result;
  }

  scmp_filter_ctx context_;
  int error_ = 0;
};

void AddRules(Rules& rules) {
  for (const Syscall& call : kAllowed) rules.Add(SCMP_ACT_ALLOW, call.number);
  for (const Syscall& call : kForbidden) rules.Add(SCMP_ACT_TRAP, call.number);
  for (const Syscall& call : kNoAccess) {
    if (call.number == SCMP_SYS(open) || call.number == SCMP_SYS(openat)) continue;
    rules.Add(SCMP_ACT_ERRNO(EACCES), call.number);
  }

  // Reading may be a library's probe (/proc/cpuinfo, /sys/...), writing is not.
  const std::pair<int, unsigned> opens[] = {{SCMP_SYS(open), 1}, {SCMP_SYS(openat), 2}};
  for (const auto& [call, flags] : opens) {
    rules.Add(SCMP_ACT_ERRNO(EACCES), call,
              SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, O_ACCMODE, O_RDONLY));
    rules.Add(SCMP_ACT_TRAP, call, SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, O_ACCMODE, O_WRONLY));
    rules.Add(SCMP_ACT_TRAP, call, SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, O_ACCMODE, O_RDWR));
    rules.Add(SCMP_ACT_TRAP, call, SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, O_ACCMODE, O_ACCMODE));
  }
  // How the C library spells fstat.
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(newfstatat),
            SCMP_CMP(3, SCMP_CMP_MASKED_EQ, AT_EMPTY_PATH, AT_EMPTY_PATH));
  rules.Add(SCMP_ACT_ERRNO(EACCES), SCMP_SYS(newfstatat),
            SCMP_CMP(3, SCMP_CMP_MASKED_EQ, AT_EMPTY_PATH, 0));

  // Threads of this process, but no process. (clone3 hides its flags in memory: it is not listed,
  // and ENOSYS makes the C library use clone.)
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(clone),
            SCMP_CMP(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
  rules.Add(SCMP_ACT_TRAP, SCMP_SYS(clone), SCMP_CMP(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
  // Signals to itself: abort() and a sanitizer's or backend's own use.
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(tgkill), SCMP_CMP(0, SCMP_CMP_EQ, kPidPlaceholder));
  rules.Add(SCMP_ACT_TRAP, SCMP_SYS(tgkill), SCMP_CMP(0, SCMP_CMP_NE, kPidPlaceholder));

  // Its own limits, which it can only lower.
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), SCMP_CMP(0, SCMP_CMP_EQ, 0));
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(setrlimit));
  for (const int command : {F_GETFD, F_SETFD, F_GETFL, F_DUPFD, F_DUPFD_CLOEXEC}) {
    rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(fcntl),
              SCMP_CMP(1, SCMP_CMP_EQ, static_cast<uint64_t>(command)));
  }
  for (const int option : {PR_SET_NAME, PR_GET_NAME, kPrSetVma}) {
    rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(prctl),
              SCMP_CMP(0, SCMP_CMP_EQ, static_cast<uint64_t>(option)));
  }
#ifdef __SANITIZE_ADDRESS__
  // UndefinedBehaviorSanitizer, its companion in our builds, tries out memory by writing it to a
  // pipe.
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(pipe));
  rules.Add(SCMP_ACT_ALLOW, SCMP_SYS(pipe2));
#endif
  // isatty() on standard output.
  rules.Add(SCMP_ACT_ERRNO(ENOTTY), SCMP_SYS(ioctl));
}

absl::Status FilterError(int error_number) {
  return ErrnoError(error_number, "compiling the sandbox's system call filter");
}

constexpr char kClone[] = "clone of a process";

// Writes the name of the forbidden call and lets SIGSYS end the process: at once, or at the return
// of the signal's handler, while which it is blocked. Async-signal-safe.
void EndBySigsys(const char* name) {
  constexpr char kPrefix[] = "sandbox: forbidden system call ";
  char line[96];
  size_t length = sizeof kPrefix - 1;
  std::memcpy(line, kPrefix, length);
  const size_t name_length = strnlen(name, sizeof line - length - 1);
  std::memcpy(line + length, name, name_length);
  length += name_length;
  line[length++] = '\n';
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line, length);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGSYS, &action, nullptr);
  ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), SIGSYS);
}

// Async-signal-safe.
void ReportSigsys(int, siginfo_t* info, void*) {
  const char* name = nullptr;
  for (const Syscall& call : kForbidden) {
    if (call.number == info->si_syscall) name = call.name;
  }
  if (info->si_syscall == SCMP_SYS(open) || info->si_syscall == SCMP_SYS(openat)) {
    name = "open for writing";
  }
  if (info->si_syscall == SCMP_SYS(clone)) name = kClone;
  if (info->si_syscall == SCMP_SYS(tgkill)) name = "tgkill";
  EndBySigsys(name == nullptr ? "(unnamed)" : name);
}

}  // namespace

absl::StatusOr<SyscallFilter> SyscallFilter::Compile() {
  Rules rules;
  AddRules(rules);
  rules.Set(SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
  // A binary tree instead of a list: fewer steps for each call.
  rules.Set(SCMP_FLTATR_CTL_OPTIMIZE, 2);
  const Fd file(::memfd_create("seccomp", MFD_CLOEXEC));
  if (!file.valid()) return FilterError(errno);
  rules.Export(file.get());
  if (rules.error() != 0) return FilterError(rules.error());
  LOWERD_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadFileToString(file.get(), BPF_MAXINSNS * sizeof(sock_filter)));
  std::vector<sock_filter> program(bytes.size() / sizeof(sock_filter));
  std::memcpy(program.data(), bytes.data(), program.size() * sizeof(sock_filter));
  bool has_placeholder = false;
  for (const sock_filter& instruction : program) {
    has_placeholder = has_placeholder || instruction.k == kPidPlaceholder;
  }
  if (!has_placeholder) {
    return MakeError(Reason::kInternalError,
                     "the sandbox's compiled filter has no place for the process id");
  }
  return SyscallFilter(std::move(program));
}

int SyscallFilter::Install() const {
  sock_filter program[BPF_MAXINSNS];
  const auto pid = static_cast<uint32_t>(::getpid());
  for (size_t i = 0; i < program_.size(); ++i) {
    program[i] = program_[i];
    if (program[i].k == kPidPlaceholder) program[i].k = pid;
  }
  const sock_fprog filter{static_cast<unsigned short>(program_.size()), program};
  // TSYNC is not needed: a child has one thread.
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) return errno;
  return 0;
}

void InstallSigsysReport() {
  struct sigaction action {};
  action.sa_sigaction = ReportSigsys;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSYS, &action, nullptr);
  // fork() of glibc 2.41 blocks all signals around its system call; the process would end
  // without a word. Without memory for this it does.
  ::pthread_atfork([] { EndBySigsys(kClone); }, nullptr, nullptr);
}

}  // namespace lowerd::pool
