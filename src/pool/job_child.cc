#include "src/pool/job_child.h"

#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "src/base/error.h"
#include "src/pool/channel.h"

namespace lowerd::pool {
namespace {

// Where the child keeps its channel, like the zygote its own.
constexpr int kChannelFd = kControlFd;

class Host final : public ChildHost {
 public:
  explicit Host(Channel& channel) : channel_(channel) {}

  void SendProgress(const internal::Progress& progress) override {
    internal::FromChild message;
    *message.mutable_progress() = progress;
    // lowerd is gone or has given this job up; it kills the child in both cases.
    if (!channel_.Send(message).ok()) ::_exit(kExitChannelLost);
  }

  absl::StatusOr<internal::NamesGranted> ClaimNames(const internal::ClaimNames& claims) override {
    internal::FromChild message;
    *message.mutable_claim_names() = claims;
    LOWERD_RETURN_IF_ERROR(channel_.Send(message));
    internal::ToChild answer;
    LOWERD_RETURN_IF_ERROR(channel_.Receive(answer));
    if (!answer.has_names_granted()) {
      return MakeError(Reason::kInternalError, "lowerd did not answer a claim of names");
    }
    return std::move(*answer.mutable_names_granted());
  }

 private:
  Channel& channel_;
};

// Leaves the child with standard streams and its channel only.
void KeepOnly(Fd channel, Fd log) {
  ::dup2(log.get(), STDOUT_FILENO);
  ::dup2(log.get(), STDERR_FILENO);
  ::dup2(channel.get(), kChannelFd);
  // The numbers below are closed as a range; the owners must not do it again.
  (void)channel.Release();
  (void)log.Release();
  ::close_range(kChannelFd + 1, ~0U, 0);
}

absl::StatusOr<internal::Done> RunJob(const ZygoteProgram& program, const internal::Job& job,
                                      const std::vector<Fd>& files, Channel& channel) {
  if (static_cast<size_t>(job.files_size()) != files.size()) {
    return MakeError(Reason::kInternalError, "a job came without its files");
  }
  std::vector<int> fds;
  for (const Fd& file : files) fds.push_back(file.get());
  Host host(channel);
  try {
    return program.run_job(job, fds, host);
  } catch (const std::bad_alloc&) {
    return MakeError(Reason::kOutOfMemory, "the job ran out of memory");
  }
}

}  // namespace

int RunJobChild(const ZygoteProgram& program, const Sandbox& sandbox, int zygote_pid, Fd channel,
                Fd log) {
  // Descriptors are dropped after Enter, which needs Landlock's ruleset that the zygote has open.
  ::dup2(log.get(), STDERR_FILENO);
  const absl::StatusOr<int64_t> base_address_space = sandbox.Enter(zygote_pid);
  if (!base_address_space.ok()) {
    std::fprintf(stderr, "%s\n", std::string(base_address_space.status().message()).c_str());
    return kExitNoSandbox;
  }
  KeepOnly(std::move(channel), std::move(log));
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  Channel to_lowerd{Fd(kChannelFd)};
  internal::ToChild request;
  std::vector<Fd> files;
  if (!to_lowerd.Receive(request, &files).ok() || !request.has_job()) return kExitChannelLost;
  const internal::Job& job = request.job();

  const absl::Status limited =
      LimitJob({job.memory_limit_bytes(), job.cpu_limit_seconds(), job.file_limit_bytes()},
               *base_address_space);
  absl::StatusOr<internal::Done> done =
      limited.ok() ? RunJob(program, job, files, to_lowerd) : limited;
  internal::FromChild message;
  if (done.ok()) {
    *message.mutable_done() = *std::move(done);
  } else {
    message.mutable_failed()->ParseFromString(SerializeStatus(done.status()));
  }
  const absl::Status sent = to_lowerd.Send(message);
  if (HasReason(sent, Reason::kLimitExceeded)) {
    // A result too large for a frame is not sent at all; say so instead.
    message.mutable_failed()->ParseFromString(SerializeStatus(sent));
    (void)to_lowerd.Send(message);
  }
  return 0;
}

}  // namespace lowerd::pool
