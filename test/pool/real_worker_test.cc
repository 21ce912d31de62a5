// The pool with the real lowerd-worker: libtorch, the engine and the reference backend.

#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "test/pool/pool_fixture.h"

namespace lowerd::pool {
namespace {

constexpr int64_t kModelLimit = 64 << 20;

// The pool of the fixture, but with the real worker.
class RealWorkerTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    StartPool(RealOptions());
  }

  static WorkerPool::Options RealOptions() {
    WorkerPool::Options options;
    options.worker_program = LOWERD_WORKER;
    options.backend_libraries = {LOWERD_REFERENCE_BACKEND};
    options.memory_limit_bytes = int64_t{1} << 30;
    return options;
  }

  // A job on the model `bytes`, with one artifact where it lowers.
  absl::StatusOr<internal::Done> RunOn(const std::string& bytes, internal::Job::Kind kind,
                                       absl::string_view target = "",
                                       absl::Duration timeout = absl::Seconds(30)) {
    const Fd model = FileOf(bytes, /*read_only=*/true);
    const Fd artifact = FileOf("");
    WorkerPool::Job job;
    job.kind = kind;
    const Digest digest = Digest::Of(bytes);
    job.request.mutable_model()->set_hash(digest.hex());
    job.request.mutable_model()->set_size_bytes(digest.size_bytes());
    v1::Target& lowered = *job.request.add_targets();
    lowered.set_path(std::string(target));
    lowered.set_backend("reference");
    v1::Method& forward = *lowered.add_methods();
    forward.set_name("forward");
    forward.mutable_compile_spec()->set_string("");
    job.request.add_formats(v1::TORCHSCRIPT);
    job.deadline = absl::Now() + timeout;
    job.files = {{internal::Job::File::MODEL, digest.hex(), model.get()}};
    if (kind == internal::Job::LOWER) {
      job.files.push_back({internal::Job::File::ARTIFACT, "TORCHSCRIPT", artifact.get()});
    }
    job.claim_names = [](const internal::ClaimNames& claims) {
      internal::NamesGranted granted;
      for (int i = 0; i < claims.claims_size(); ++i) granted.add_mangle(i + 1);
      return granted;
    };
    auto done = pool_->Run(job);
    artifact_bytes_ = BytesOf(artifact);
    return done;
  }

  static std::string Model(absl::string_view name) {
    auto bytes = ReadFileToString(absl::StrCat(LOWERD_TEST_MODELS, "/", name), kModelLimit);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *std::move(bytes) : "";
  }

  std::string artifact_bytes_;
};

TEST_F(RealWorkerTest, LowersAModelAndTheSameJobGivesTheSameBytes) {
  const std::string model = Model("mobilenet_v2.pt");
  const auto done = RunOn(model, internal::Job::LOWER, "classifier");
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->manifest().lowered_modules_size(), 1);
  EXPECT_EQ(done->manifest().lowered_modules(0).path(), "classifier");
  const std::string first = artifact_bytes_;
  EXPECT_FALSE(first.empty());
  ASSERT_TRUE(RunOn(model, internal::Job::LOWER, "classifier").ok());
  EXPECT_EQ(artifact_bytes_, first);
}

TEST_F(RealWorkerTest, InspectsAndPlans) {
  const std::string model = Model("mobilenet_v2.pt");
  const auto description = RunOn(model, internal::Job::INSPECT);
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_TRUE(description->has_description());
  const auto plan = RunOn(model, internal::Job::PLAN, "classifier");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->has_plan());
}

TEST_F(RealWorkerTest, WhatIsNotTorchscriptIsRefusedByReason) {
  const auto done = RunOn("not a model", internal::Job::INSPECT);
  EXPECT_TRUE(HasReason(done.status(), Reason::kModelNotTorchscript)) << done.status();
}

struct HostileModel {
  const char* file;
  // Any of these is right.
  std::vector<Reason> reasons;
};

void PrintTo(const HostileModel& model, std::ostream* out) { *out << model.file; }

class HostileModelTest : public RealWorkerTest, public testing::WithParamInterface<HostileModel> {};

TEST_P(HostileModelTest, IsStoppedAndTheNextJobRuns) {
  const absl::Time began = absl::Now();
  const auto done = RunOn(Model(GetParam().file), internal::Job::LOWER, "", absl::Seconds(10));
  ASSERT_FALSE(done.ok());
  EXPECT_LT(absl::Now() - began, absl::Seconds(10.5));
  bool expected = false;
  for (const Reason reason : GetParam().reasons) {
    expected = expected || HasReason(done.status(), reason);
  }
  EXPECT_TRUE(expected) << done.status();
  EXPECT_NE(::access("/tmp/lowerd-hostile-model-was-here", F_OK), 0);
  const auto next = RunOn(Model("tiny.pt"), internal::Job::LOWER, "a");
  EXPECT_TRUE(next.ok()) << next.status();
}

const HostileModel kHostileModels[] = {
    {"endless_setstate.pt", {Reason::kDeadlineExceeded}},
    {"hostile_writes_file.pt", {Reason::kWorkerCrashed}},
    {"hostile_reads_file.pt", {Reason::kModelCorrupt}},
    {"hostile_eats_memory.pt", {Reason::kOutOfMemory}},
    {"hostile_one_allocation.pt", {Reason::kOutOfMemory}},
    {"hostile_starts_threads.pt", {Reason::kOutOfMemory, Reason::kDeadlineExceeded}},
    {"hostile_deep_source.pt", {Reason::kModelCorrupt, Reason::kWorkerCrashed}},
};

INSTANTIATE_TEST_SUITE_P(Models, HostileModelTest, testing::ValuesIn(kHostileModels),
                         [](const auto& test) {
                           const std::string file = test.param.file;
                           return file.substr(0, file.size() - 3);
                         });

}  // namespace
}  // namespace lowerd::pool
