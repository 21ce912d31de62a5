// Damaged models against the real worker: whatever they make libtorch do, each job ends in time
// with a result or an error, the pool goes on, and no process, descriptor, file or memory is left.
// Seeded; the seed is part of every failure.
//
//   LOWERD_MUTATIONS=20000 mutation_test

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "test/pool/pool_fixture.h"
#include "test/support/temp_dir.h"

namespace lowerd::pool {
namespace {

constexpr unsigned kSeed = 20240501;
constexpr int kDefaultMutations = 2000;
// One in so many is a mutation of a large model.
constexpr int kLargeEvery = 10;
constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr int64_t kModelLimit = 64 << 20;
// Of a pool of one worker.
constexpr size_t kChildrenInStock = 2;
// What the allocators of the pool and the zygote may keep, in bytes: less than one leaked model.
constexpr int64_t kMemoryAllowance = 8 << 20;

using Random = std::mt19937;

size_t Below(Random& random, size_t limit) {
  return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
}

// One to eight changes of the kinds that transport, disks and attackers make.
std::string Mutate(std::string bytes, Random& random) {
  const size_t changes = 1 + Below(random, 8);
  for (size_t i = 0; i < changes && bytes.size() > 16; ++i) {
    const size_t at = Below(random, bytes.size() - 8);
    const size_t length = 1 + Below(random, std::min<size_t>(64, bytes.size() - at));
    switch (Below(random, 6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(Below(random, 256));
        break;
      case 2:  // A number that is too large.
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), 4, '\xff');
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4: {  // Two ranges change places.
        const size_t other = Below(random, bytes.size() - length + 1);
        for (size_t j = 0; j < length; ++j) std::swap(bytes[at + j], bytes[other + j]);
        break;
      }
      case 5:
        bytes.insert(at, bytes.substr(at, length));
        break;
    }
  }
  return bytes;
}

int Mutations() {
  const char* text = std::getenv("LOWERD_MUTATIONS");
  return text == nullptr ? kDefaultMutations : std::atoi(text);
}

// Memory of a process that no file is behind, in bytes.
int64_t PrivateMemory(const std::string& process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "RssAnon:")) return std::atoll(line.c_str() + 8) * 1024;
  }
  ADD_FAILURE() << "the memory of process " << process << " is not told";
  return 0;
}

TEST_F(PoolTest, DamagedModelsEndInTimeAndLeaveNothingBehind) {
  const test::TempDir folder;
  // Where a job would leave a file that it names by a relative path.
  ASSERT_EQ(::chdir(folder.path().c_str()), 0);
  WorkerPool::Options options;
  options.worker_program = LOWERD_WORKER;
  options.backend_libraries = {LOWERD_REFERENCE_BACKEND};
  options.memory_limit_bytes = int64_t{1} << 30;
  StartPool(options);
  const auto tiny = ReadFileToString(absl::StrCat(LOWERD_TEST_MODELS, "/tiny.pt"), kModelLimit);
  const auto large =
      ReadFileToString(absl::StrCat(LOWERD_TEST_MODELS, "/mobilenet_v2.pt"), kModelLimit);
  ASSERT_TRUE(tiny.ok()) << tiny.status();
  ASSERT_TRUE(large.ok()) << large.status();

  const auto run = [&](const std::string& bytes, const std::string& path) {
    const Fd file = FileOf(bytes, /*read_only=*/true);
    const Fd artifact = FileOf("");
    const Digest digest = Digest::Of(bytes);
    WorkerPool::Job job;
    job.request.mutable_model()->set_hash(digest.hex());
    job.request.mutable_model()->set_size_bytes(digest.size_bytes());
    v1::Target& target = *job.request.add_targets();
    target.set_path(path);
    target.set_backend("reference");
    v1::Method& forward = *target.add_methods();
    forward.set_name("forward");
    forward.mutable_compile_spec()->set_string("");
    job.request.add_formats(v1::TORCHSCRIPT);
    job.deadline = absl::Now() + kTimeout;
    job.files = {{internal::Job::File::MODEL, digest.hex(), file.get()},
                 {internal::Job::File::ARTIFACT, "TORCHSCRIPT", artifact.get()}};
    job.claim_names = [](const internal::ClaimNames& claims) {
      internal::NamesGranted granted;
      for (int i = 0; i < claims.claims_size(); ++i) granted.add_mangle(i + 1);
      return granted;
    };
    const absl::Status status = pool_->Run(job).status();
    EXPECT_LT(absl::Now() - job.deadline, kLatenessLimit);
    return status;
  };

  // The first jobs also warm up allocators.
  ASSERT_TRUE(run(*large, "classifier").ok());
  ASSERT_TRUE(run(*tiny, "a").ok());
  const std::vector<int> zygotes = ChildrenOf(::getpid());
  ASSERT_EQ(zygotes.size(), 1u);
  const std::string zygote = absl::StrCat(zygotes.front());
  const int64_t pool_memory = PrivateMemory("self");
  const int64_t zygote_memory = PrivateMemory(zygote);

  for (int i = 0; i < Mutations(); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed + static_cast<unsigned>(i)));
    Random random(kSeed + static_cast<unsigned>(i));
    const absl::Status status = i % kLargeEvery == 0 ? run(Mutate(*large, random), "classifier")
                                                     : run(Mutate(*tiny, random), "a");
    EXPECT_TRUE(status.ok() || !ReasonOf(status).empty()) << status;
    EXPECT_FALSE(HasReason(status, Reason::kServerUnavailable)) << status;
  }

  for (const auto& [model, path] :
       {std::pair(*large, std::string("classifier")), std::pair(*tiny, std::string("a"))}) {
    const absl::Status after = run(model, path);
    EXPECT_TRUE(after.ok()) << after;
  }
  EXPECT_EQ(pool_->GetStats().zygote_restarts, 0);
  EXPECT_LT(PrivateMemory("self") - pool_memory, kMemoryAllowance);
  EXPECT_LT(PrivateMemory(zygote) - zygote_memory, kMemoryAllowance);
  // What ends needs a moment until its parent has heard of it.
  while (ChildrenOf(zygotes.front()).size() != kChildrenInStock) std::this_thread::yield();
  ASSERT_EQ(::chdir("/"), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lowerd::pool
