// Damaged models against the real worker: whatever they make libtorch do, each job ends in time
// with a result or an error, and the pool goes on. Seeded; the seed is part of every failure.
//
//   LOWERD_MUTATIONS=2000 mutation_test

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "test/pool/pool_fixture.h"

namespace lowerd::pool {
namespace {

constexpr unsigned kSeed = 20240501;
constexpr int kDefaultMutations = 100;
constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr int64_t kModelLimit = 64 << 20;

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

TEST_F(PoolTest, DamagedModelsEndInTimeAndLeaveNothingBehind) {
  WorkerPool::Options options;
  options.worker_program = LOWERD_WORKER;
  options.backend_libraries = {LOWERD_REFERENCE_BACKEND};
  options.memory_limit_bytes = int64_t{1} << 30;
  StartPool(options);
  const auto model = ReadFileToString(absl::StrCat(LOWERD_TEST_MODELS, "/tiny.pt"), kModelLimit);
  ASSERT_TRUE(model.ok()) << model.status();

  const auto run = [&](const std::string& bytes) {
    const Fd file = FileOf(bytes, /*read_only=*/true);
    const Fd artifact = FileOf("");
    const Digest digest = Digest::Of(bytes);
    WorkerPool::Job job;
    job.request.mutable_model()->set_hash(digest.hex());
    job.request.mutable_model()->set_size_bytes(digest.size_bytes());
    v1::Target& target = *job.request.add_targets();
    target.set_path("a");
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
    return pool_->Run(job).status();
  };

  ASSERT_TRUE(run(*model).ok());
  for (int i = 0; i < Mutations(); ++i) {
    Random random(kSeed + static_cast<unsigned>(i));
    const absl::Time began = absl::Now();
    const absl::Status status = run(Mutate(*model, random));
    EXPECT_LT(absl::Now() - began, kTimeout + absl::Seconds(1)) << "seed " << kSeed + i;
    EXPECT_FALSE(status.code() != absl::StatusCode::kOk && ReasonOf(status).empty())
        << "seed " << kSeed + i << ": " << status;
    EXPECT_FALSE(HasReason(status, Reason::kServerUnavailable)) << "seed " << kSeed + i;
  }
  const absl::Status after = run(*model);
  EXPECT_TRUE(after.ok()) << after;
  EXPECT_EQ(pool_->GetStats().zygote_restarts, 0);
}

}  // namespace
}  // namespace lowerd::pool
