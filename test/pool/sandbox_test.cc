// What a job cannot do, one rule at a time: a fake job tries it inside the real sandbox.

#include <csignal>
#include <string>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "test/pool/pool_fixture.h"

namespace lowerd::pool {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct Rule {
  const char* action;
  // What the job is told; or, if it starts with "forbidden", the system call that ends it.
  const char* outcome;
};

void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.action; }

class SandboxRuleTest : public PoolTest, public testing::WithParamInterface<Rule> {};

TEST_P(SandboxRuleTest, HoldsAndTheNextJobRuns) {
  const std::string expected = GetParam().outcome;
  const auto result = Run(GetParam().action);
  if (absl::StartsWith(expected, "forbidden")) {
    EXPECT_TRUE(HasReason(result.status(), Reason::kWorkerCrashed)) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("SIGSYS"));
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr(absl::StrCat("sandbox: forbidden system call ", expected.substr(10))));
  } else {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result, expected);
  }
  const auto next = Run("");
  EXPECT_TRUE(next.ok()) << next.status();
}

constexpr Rule kRules[] = {
    {"read-file", "EACCES"},
    {"read-proc", "EACCES"},
    {"read-parent-memory", "EACCES"},
    {"list-root", "EACCES"},
    {"reopen-descriptor", "EACCES"},
    {"stat-file", "EACCES"},
    {"openat2", "EACCES"},
    {"write-file", "forbidden open for writing"},
    {"create-file", "forbidden "},
    {"unlink", "forbidden unlink"},
    {"rename", "forbidden rename"},
    {"mkdir", "forbidden mkdir"},
    {"chmod", "forbidden chmod"},
    {"tcp-socket", "forbidden socket"},
    {"udp-socket", "forbidden socket"},
    {"unix-socket", "forbidden socket"},
    {"netlink-socket", "forbidden socket"},
    {"exec", "forbidden execve"},
    {"fork", "forbidden clone of a process"},
    {"vfork", "forbidden vfork"},
    {"fork-bomb", "forbidden clone of a process"},
    {"clone-namespace", "forbidden clone of a process"},
    {"clone3", "ENOSYS"},
    {"unshare", "forbidden unshare"},
    {"kill-parent", "forbidden kill"},
    {"kill-group", "forbidden kill"},
    {"tgkill-parent", "forbidden tgkill"},
    {"queue-signal-to-parent", "forbidden rt_sigqueueinfo"},
    {"own-a-descriptor", "ENOSYS"},
    {"pidfd-of-parent", "forbidden pidfd_open"},
    {"ptrace-parent", "forbidden ptrace"},
    {"process-vm-readv", "forbidden process_vm_readv"},
    {"bpf", "forbidden bpf"},
    {"io-uring", "forbidden io_uring_setup"},
    {"userfaultfd", "forbidden userfaultfd"},
    {"keyctl", "forbidden keyctl"},
    {"memfd", "ENOSYS"},
    {"setuid", "forbidden setuid"},
    {"raise-limit", "EPERM"},
    {"limit-of-parent", "ENOSYS"},
    {"mount", "forbidden mount"},
    {"dump-core", "0"},
    // It may compute, and have threads.
    {"thread", "42"},
    {"ids", "user pid"},
};

INSTANTIATE_TEST_SUITE_P(Rules, SandboxRuleTest, testing::ValuesIn(kRules), [](const auto& test) {
  std::string name;
  for (const char c : std::string(test.param.action)) {
    if (c != '-') name += c;
  }
  return name;
});

using SandboxTest = PoolTest;

TEST_F(SandboxTest, RemovingTheHandlerOfForbiddenCallsGainsNothing) {
  const auto result = Run("removed-handler");
  EXPECT_TRUE(HasReason(result.status(), Reason::kWorkerCrashed)) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("SIGSYS"));
}

TEST_F(SandboxTest, AllLayersAreInForceOnThisHost) {
  EXPECT_THAT(pool_->toolchain().sandbox_missing(), IsEmpty());
  for (const char* layer :
       {"own-session", "no-new-privileges", "no-capabilities", "resource-limits", "seccomp"}) {
    EXPECT_THAT(pool_->toolchain().sandbox_layers(), Contains(layer));
  }
  EXPECT_THAT(pool_->toolchain().sandbox_layers(), Contains(StartsWith("landlock-abi-")));
}

TEST_F(SandboxTest, JobsHaveStandardStreamsTheirChannelAndTheirFilesOnly) {
  EXPECT_EQ(*Run("descriptors"), "0 1 2 3");
  const Fd model = FileOf("model");
  WorkerPool::Job job = FakeJob("descriptors");
  job.files = {{internal::Job::File::MODEL, "", model.get()}};
  EXPECT_EQ(*Run(job), "0 1 2 3 4");
}

TEST_F(SandboxTest, EnvironmentIsCleared) {
  ::setenv("LOWERD_TEST_SECRET", "secret", 1);
  StartPool(FakeOptions());
  ::unsetenv("LOWERD_TEST_SECRET");
  const auto names = Run("environment");
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, HasSubstr("OMP_NUM_THREADS"));
  EXPECT_THAT(*names, testing::Not(HasSubstr("SECRET")));
  EXPECT_THAT(*names, testing::Not(HasSubstr("PATH ")));
}

TEST_F(SandboxTest, InputsCannotBeWrittenTo) {
  const Fd model = FileOf("model", /*read_only=*/true);
  WorkerPool::Job job = FakeJob("write-inputs");
  job.files = {{internal::Job::File::MODEL, "", model.get()}};
  EXPECT_EQ(*Run(job), "EBADF EINVAL EACCES");
  EXPECT_EQ(BytesOf(model), "model");
}

TEST_F(SandboxTest, ArtifactsCannotGrowWithoutEnd) {
  const Fd artifact = FileOf("");
  WorkerPool::Job job = FakeJob("fill-artifact");
  job.files = {{internal::Job::File::ARTIFACT, "a", artifact.get()}};
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kLimitExceeded)) << result.status();
}

TEST_F(SandboxTest, MemoryIsLimitedAndTheErrorNamesTheLimit) {
  WorkerPool::Options options = FakeOptions();
  options.memory_limit_bytes = 256 << 20;
  StartPool(options);
  const auto result = Run("oom");
  EXPECT_TRUE(HasReason(result.status(), Reason::kOutOfMemory)) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("256 MiB"));
  EXPECT_TRUE(Run("").ok());
}

}  // namespace
}  // namespace lowerd::pool
