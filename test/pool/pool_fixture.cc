#include "test/pool/pool_fixture.h"

#include <algorithm>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace lowerd::pool {
namespace {

std::vector<std::string> List(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory)) names.emplace_back(entry->d_name);
  ::closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

PoolTest::PoolTest() : descriptors_before_(List("/proc/self/fd")) {}

void PoolTest::SetUp() {
  // Orphans of a dead zygote become our children, so that TearDown sees them.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  StartPool(FakeOptions());
}

void PoolTest::EndPool() {
  pool_.reset();
  // Blocks for ever, until the test's timeout, if some process does not end.
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
}

void PoolTest::TearDown() {
  EndPool();
  EXPECT_EQ(List("/proc/self/fd"), descriptors_before_);
}

WorkerPool::Options PoolTest::FakeOptions() {
  WorkerPool::Options options;
  options.worker_program = LOWERD_FAKE_WORKER;
  options.workers = 1;
  return options;
}

void PoolTest::StartPool(WorkerPool::Options options) {
  EndPool();
  auto pool = WorkerPool::Create(std::move(options));
  ASSERT_TRUE(pool.ok()) << pool.status();
  pool_ = *std::move(pool);
}

WorkerPool::Job PoolTest::FakeJob(absl::string_view action) {
  WorkerPool::Job job;
  job.request.set_artifact_stem(std::string(action));
  // Far more than any test takes.
  job.deadline = absl::Now() + absl::Minutes(1);
  return job;
}

absl::StatusOr<std::string> PoolTest::Run(const WorkerPool::Job& job) {
  auto done = pool_->Run(job);
  if (!done.ok()) return done.status();
  return done->manifest().producer().lowerd_version();
}

Fd FileOf(absl::string_view bytes, bool read_only) {
  Fd file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_TRUE(WriteAll(file.get(), bytes).ok());
  if (!read_only) return file;
  auto reopened = OpenFile(absl::StrCat("/proc/self/fd/", file.get()), O_RDONLY);
  EXPECT_TRUE(reopened.ok()) << reopened.status();
  return *std::move(reopened);
}

std::string BytesOf(const Fd& file) {
  const auto bytes = ReadFileToString(file.get(), 1 << 20);
  return bytes.ok() ? *bytes : std::string(bytes.status().message());
}

std::vector<int> ChildrenOf(int pid) {
  std::vector<int> children;
  for (const std::string& thread : List(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/task/", thread, "/children"));
    for (int child; file >> child;) children.push_back(child);
  }
  return children;
}

}  // namespace lowerd::pool
