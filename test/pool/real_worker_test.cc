// The pool with the real lowerd-worker: libtorch, the engine and the reference backend.

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "test/pool/pool_fixture.h"
#include "test/support/temp_dir.h"

namespace lowerd::pool {
namespace {

using testing::HasSubstr;

constexpr int64_t kModelLimit = 64 << 20;
// For a job that never ends to get to where it does not, and for others to end by themselves.
constexpr absl::Duration kShortTimeout = absl::Seconds(5);
constexpr absl::Duration kLongTimeout = absl::Seconds(30);
// Of a pool of one worker.
constexpr size_t kChildrenInStock = 2;

// The pool of the fixture, but with the real worker.
class RealWorkerTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    // Where a job would leave a file that it names by a relative path.
    ASSERT_EQ(::chdir(folder_.path().c_str()), 0);
    StartPool(RealOptions());
  }
  void TearDown() override {
    ASSERT_EQ(::chdir("/"), 0);
    PoolTest::TearDown();
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    EXPECT_NE(::access("/tmp/lowerd-hostile-model-was-here", F_OK), 0);
  }

  static WorkerPool::Options RealOptions() {
    WorkerPool::Options options;
    options.worker_program = LOWERD_WORKER;
    options.backend_libraries = {LOWERD_REFERENCE_BACKEND, LOWERD_TEST_BACKENDS};
    options.memory_limit_bytes = int64_t{1} << 30;
    // Jobs on one model follow each other here, good ones after bad ones.
    options.crash_quarantine = absl::ZeroDuration();
    return options;
  }

  // How a job differs from one that lowers the whole model to the reference backend.
  struct Difference {
    internal::Job::Kind kind = internal::Job::LOWER;
    std::string target;
    std::string backend = "reference";
    std::string compile_spec;
    // A file of test/models with sample inputs, or empty.
    std::string inputs;
    absl::Duration timeout = kLongTimeout;
  };

  // A job on the model `bytes`, with one artifact where it lowers.
  absl::StatusOr<internal::Done> RunOn(const std::string& bytes, const Difference& difference) {
    const Fd model = FileOf(bytes, /*read_only=*/true);
    const Fd artifact = FileOf("");
    Fd inputs;
    WorkerPool::Job job;
    job.kind = difference.kind;
    const Digest digest = Digest::Of(bytes);
    job.request.mutable_model()->set_hash(digest.hex());
    job.request.mutable_model()->set_size_bytes(digest.size_bytes());
    v1::Target& lowered = *job.request.add_targets();
    lowered.set_path(difference.target);
    lowered.set_backend(difference.backend);
    v1::Method& forward = *lowered.add_methods();
    forward.set_name("forward");
    forward.mutable_compile_spec()->set_string(difference.compile_spec);
    job.request.add_formats(v1::TORCHSCRIPT);
    job.files = {{internal::Job::File::MODEL, digest.hex(), model.get()}};
    if (difference.kind == internal::Job::LOWER) {
      job.files.push_back({internal::Job::File::ARTIFACT, "TORCHSCRIPT", artifact.get()});
    }
    if (!difference.inputs.empty()) {
      const std::string sample = Model(difference.inputs);
      inputs = FileOf(sample, /*read_only=*/true);
      v1::SampleInput& input = *job.request.add_sample_inputs();
      input.set_method("forward");
      input.mutable_inputs()->set_hash(Digest::Of(sample).hex());
      job.files.push_back({internal::Job::File::BLOB, input.inputs().hash(), inputs.get()});
    }
    job.claim_names = [](const internal::ClaimNames& claims) {
      internal::NamesGranted granted;
      for (int i = 0; i < claims.claims_size(); ++i) granted.add_mangle(i + 1);
      return granted;
    };
    job.deadline = absl::Now() + difference.timeout;
    auto done = pool_->Run(job);
    late_ = absl::Now() - job.deadline;
    EXPECT_EQ(Digest::Of(*ReadFileToString(model.get(), kModelLimit)), digest) << "it was changed";
    artifact_bytes_ = BytesOf(artifact);
    return done;
  }

  // A job that ends well, and no process is there but the zygote and the children in stock.
  void ExpectNothingIsLeftAndTheNextJobRuns() {
    const auto next = RunOn(Model("tiny.pt"), {.target = "a"});
    EXPECT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(pool_->GetStats().zygote_restarts, 0);
    const std::vector<int> zygotes = ChildrenOf(::getpid());
    ASSERT_EQ(zygotes.size(), 1u);
    // What ends needs a moment until its parent has heard of it.
    while (ChildrenOf(zygotes.front()).size() != kChildrenInStock) std::this_thread::yield();
    for (const int child : ChildrenOf(zygotes.front())) EXPECT_TRUE(ChildrenOf(child).empty());
  }

  static std::string Model(absl::string_view name) {
    auto bytes = ReadFileToString(absl::StrCat(LOWERD_TEST_MODELS, "/", name), kModelLimit);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *std::move(bytes) : "";
  }

  std::string artifact_bytes_;
  // How long after its deadline the last job ended; negative if before.
  absl::Duration late_;

 private:
  const test::TempDir folder_;
};

TEST_F(RealWorkerTest, LowersAModelAndTheSameJobGivesTheSameBytes) {
  const std::string model = Model("mobilenet_v2.pt");
  const auto done = RunOn(model, {.target = "classifier"});
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->manifest().lowered_modules_size(), 1);
  EXPECT_EQ(done->manifest().lowered_modules(0).path(), "classifier");
  const std::string first = artifact_bytes_;
  EXPECT_FALSE(first.empty());
  ASSERT_TRUE(RunOn(model, {.target = "classifier"}).ok());
  EXPECT_EQ(artifact_bytes_, first);
}

TEST_F(RealWorkerTest, InspectsAndPlans) {
  const std::string model = Model("mobilenet_v2.pt");
  const auto description = RunOn(model, {.kind = internal::Job::INSPECT});
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_TRUE(description->has_description());
  const auto plan = RunOn(model, {.kind = internal::Job::PLAN, .target = "classifier"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->has_plan());
}

TEST_F(RealWorkerTest, WhatIsNotTorchscriptIsRefusedByReason) {
  const auto done = RunOn("not a model", {.kind = internal::Job::INSPECT});
  EXPECT_TRUE(HasReason(done.status(), Reason::kModelNotTorchscript)) << done.status();
}

struct HostileModel {
  const char* file;
  // Any of these is right.
  std::vector<Reason> reasons;
  // Sample inputs to run it on, if any.
  const char* inputs = "";
  // What the message says about it.
  const char* text = "";
  absl::Duration lateness_limit = kLatenessLimit;
};

void PrintTo(const HostileModel& model, std::ostream* out) { *out << model.file; }

bool HasOneOf(const absl::Status& status, const std::vector<Reason>& reasons) {
  return std::any_of(reasons.begin(), reasons.end(),
                     [&](Reason reason) { return HasReason(status, reason); });
}

class HostileModelTest : public RealWorkerTest, public testing::WithParamInterface<HostileModel> {};

absl::Duration TimeoutFor(Reason reason) {
  return reason == Reason::kDeadlineExceeded ? kShortTimeout : kLongTimeout;
}

TEST_P(HostileModelTest, IsStoppedAndTheNextJobRuns) {
  const auto done =
      RunOn(Model(GetParam().file), {.target = *GetParam().inputs != 0 ? "0" : "",
                                     .inputs = GetParam().inputs,
                                     .timeout = TimeoutFor(GetParam().reasons.front())});
  EXPECT_LT(late_, GetParam().lateness_limit);
  EXPECT_TRUE(HasOneOf(done.status(), GetParam().reasons)) << done.status();
  EXPECT_THAT(std::string(done.status().message()), HasSubstr(GetParam().text));
  ExpectNothingIsLeftAndTheNextJobRuns();
}

const HostileModel kHostileModels[] = {
    {"endless_setstate.pt", {Reason::kDeadlineExceeded}, "", "while loading"},
    {"hostile_endless_forward.pt", {Reason::kDeadlineExceeded}, "tiny.inputs.pt"},
    {"hostile_endless_when_saved_again.pt",
     {Reason::kDeadlineExceeded},
     "tiny.inputs.pt",
     "while verifying"},
    {"hostile_writes_file.pt", {Reason::kWorkerCrashed}},
    {"hostile_reads_file.pt", {Reason::kModelCorrupt}},
    {"hostile_eats_memory.pt", {Reason::kOutOfMemory}},
    {"hostile_one_allocation.pt", {Reason::kOutOfMemory}},
    // The kernel takes its time to end thousands of threads.
    {"hostile_starts_threads.pt",
     {Reason::kDeadlineExceeded, Reason::kOutOfMemory},
     "",
     "",
     3 * kLatenessLimit},
    {"hostile_deep_source.pt", {Reason::kModelCorrupt, Reason::kWorkerCrashed}},
};

INSTANTIATE_TEST_SUITE_P(Models, HostileModelTest, testing::ValuesIn(kHostileModels),
                         [](const auto& test) {
                           const std::string file = test.param.file;
                           return file.substr(0, file.size() - 3);
                         });

// What test_hostile does in its preprocess, by its name there.
struct HostileBackend {
  const char* attack;
  Reason reason;
  // What the message says about it.
  const char* text;
};

void PrintTo(const HostileBackend& backend, std::ostream* out) { *out << backend.attack; }

class HostileBackendTest : public RealWorkerTest,
                           public testing::WithParamInterface<HostileBackend> {};

TEST_P(HostileBackendTest, IsStoppedAndTheNextJobRuns) {
  const auto done = RunOn(Model("tiny.pt"), {.target = "a",
                                             .backend = "test_hostile",
                                             .compile_spec = GetParam().attack,
                                             .timeout = TimeoutFor(GetParam().reason)});
  EXPECT_LT(late_, kLatenessLimit);
  EXPECT_TRUE(HasReason(done.status(), GetParam().reason)) << done.status();
  EXPECT_THAT(std::string(done.status().message()), HasSubstr(GetParam().text));
  ExpectNothingIsLeftAndTheNextJobRuns();
}

constexpr HostileBackend kHostileBackends[] = {
    {"spin", Reason::kDeadlineExceeded, "while lowering"},
    {"crash", Reason::kWorkerCrashed, "SIGSEGV"},
    {"throw", Reason::kWorkerCrashed, "SIGABRT"},
    {"overflow-stack", Reason::kWorkerCrashed, "SIGSEGV"},
    {"eat-memory", Reason::kOutOfMemory, "1024 MiB"},
    {"open-socket", Reason::kWorkerCrashed, "forbidden system call socket"},
    {"fork", Reason::kWorkerCrashed, "forbidden system call clone"},
    {"bomb", Reason::kWorkerCrashed, "forbidden system call clone"},
    {"exec", Reason::kWorkerCrashed, "forbidden system call execve"},
    {"kill-parent", Reason::kWorkerCrashed, "forbidden system call kill"},
    {"kill-all", Reason::kWorkerCrashed, "forbidden system call kill"},
    {"create-file", Reason::kWorkerCrashed, "forbidden system call open for writing"},
    {"write-to-channel", Reason::kWorkerCrashed, "protocol"},
};

INSTANTIATE_TEST_SUITE_P(Attacks, HostileBackendTest, testing::ValuesIn(kHostileBackends),
                         [](const auto& test) {
                           std::string name = test.param.attack;
                           std::erase(name, '-');
                           return name;
                         });

TEST_F(RealWorkerTest, WhatRunsForEverOnTheDeviceIsStoppedWhenItIsVerified) {
  const auto done = RunOn(Model("tiny.pt"), {.target = "a",
                                             .backend = "test_hostile",
                                             .inputs = "tiny.inputs.pt",
                                             .timeout = kShortTimeout});
  EXPECT_LT(late_, kLatenessLimit);
  EXPECT_TRUE(HasReason(done.status(), Reason::kDeadlineExceeded)) << done.status();
  EXPECT_THAT(std::string(done.status().message()), HasSubstr("while verifying"));
  ExpectNothingIsLeftAndTheNextJobRuns();
}

TEST_F(RealWorkerTest, RubbishInTheDescriptorsChangesNoInputAndIsFoundInTheArtifacts) {
  const auto done = RunOn(Model("tiny.pt"), {.target = "a",
                                             .backend = "test_hostile",
                                             .compile_spec = "write-to-descriptors",
                                             .inputs = "tiny.inputs.pt"});
  EXPECT_TRUE(HasReason(done.status(), Reason::kVerificationFailed)) << done.status();
  ExpectNothingIsLeftAndTheNextJobRuns();
}

TEST_F(RealWorkerTest, ThreadThatIsLeftRunningEndsWithTheJob) {
  const auto done = RunOn(
      Model("tiny.pt"), {.target = "a", .backend = "test_hostile", .compile_spec = "leave-thread"});
  EXPECT_TRUE(done.ok()) << done.status();
  ExpectNothingIsLeftAndTheNextJobRuns();
}

}  // namespace
}  // namespace lowerd::pool
