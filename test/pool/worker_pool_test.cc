// The pool against jobs that end in every way, and against a zygote that does not behave.

#include "src/pool/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "test/pool/pool_fixture.h"

namespace lowerd::pool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using WorkerPoolTest = PoolTest;

TEST_F(WorkerPoolTest, JobGetsItsFilesInOrderAndWritesItsArtifact) {
  const Fd model = FileOf("M", true);
  const Fd blob = FileOf("B", true);
  const Fd artifact = FileOf("");
  WorkerPool::Job job = FakeJob("echo-files");
  job.files = {{internal::Job::File::MODEL, "model", model.get()},
               {internal::Job::File::BLOB, "blob", blob.get()},
               {internal::Job::File::ARTIFACT, "artifact", artifact.get()}};
  EXPECT_EQ(*Run(job), "model=M blob=B artifact=");
  job.request.set_artifact_stem("");
  EXPECT_EQ(*Run(job), "ok");
  EXPECT_EQ(BytesOf(artifact), "artifact");
}

TEST_F(WorkerPoolTest, NamesAreClaimedFromTheCaller) {
  WorkerPool::Job job = FakeJob("claim");
  job.claim_names = [](const internal::ClaimNames& claims) {
    internal::NamesGranted granted;
    for (int i = 0; i < claims.claims_size(); ++i) granted.add_mangle(i + 7);
    return granted;
  };
  EXPECT_EQ(*Run(job), "7 8");
}

TEST_F(WorkerPoolTest, ErrorOfAClaimEndsTheJobWithThatError) {
  WorkerPool::Job job = FakeJob("claim");
  job.claim_names = [](const internal::ClaimNames&) {
    return MakeError(Reason::kServerUnavailable, "the registry is away");
  };
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kServerUnavailable)) << result.status();
}

// A registry that does not answer until it is told to; its claims outlive their jobs.
struct StuckRegistry {
  absl::Notification asked;
  absl::Notification release;
};

WorkerPool::Job StuckJob(WorkerPool::Job job, const std::shared_ptr<StuckRegistry>& registry) {
  job.claim_names = [registry](const internal::ClaimNames&) {
    registry->asked.Notify();
    registry->release.WaitForNotification();
    return internal::NamesGranted();
  };
  return job;
}

TEST_F(WorkerPoolTest, CancellationDoesNotAwaitTheRegistry) {
  const auto registry = std::make_shared<StuckRegistry>();
  Cancellation cancellation;
  WorkerPool::Job job = StuckJob(FakeJob("claim"), registry);
  job.cancellation = &cancellation;
  absl::Time cancelled;
  std::thread canceller([&] {
    registry->asked.WaitForNotification();
    cancelled = absl::Now();
    cancellation.Cancel();
  });
  const auto result = Run(job);
  const absl::Time ended = absl::Now();
  canceller.join();
  EXPECT_TRUE(HasReason(result.status(), Reason::kOperationCancelled)) << result.status();
  EXPECT_LT(ended - cancelled, kLatenessLimit);
  // The worker is free for a job that needs no names.
  EXPECT_TRUE(Run("").ok());
  registry->release.Notify();
}

TEST_F(WorkerPoolTest, DeadlineDoesNotAwaitTheRegistry) {
  const auto registry = std::make_shared<StuckRegistry>();
  WorkerPool::Job job = StuckJob(FakeJob("claim"), registry);
  // The next job's claim waits for the first one's, and its deadline holds all the same.
  WorkerPool::Job next = FakeJob("claim");
  next.claim_names = [](const internal::ClaimNames&) { return internal::NamesGranted(); };
  for (WorkerPool::Job* late : {&job, &next}) {
    late->deadline = absl::Now() + absl::Milliseconds(300);
    const auto result = Run(*late);
    EXPECT_TRUE(HasReason(result.status(), Reason::kDeadlineExceeded)) << result.status();
    EXPECT_LT(absl::Now() - late->deadline, kLatenessLimit);
  }
  registry->release.Notify();
  next.deadline = absl::InfiniteFuture();
  EXPECT_TRUE(Run(next).ok());
}

TEST_F(WorkerPoolTest, ErrorOfAJobArrivesWithItsReason) {
  const auto result = Run("fail");
  EXPECT_TRUE(HasReason(result.status(), Reason::kModelCorrupt)) << result.status();
  EXPECT_EQ(result.status().message(), "the model is broken");
}

TEST_F(WorkerPoolTest, ErrorOfAJobIsCutToASizeThatCanBeKept) {
  const auto result = Run("fail-at-length");
  EXPECT_TRUE(HasReason(result.status(), Reason::kModelCorrupt)) << result.status().code();
  EXPECT_LE(result.status().message().size(), 16u << 10);
}

TEST_F(WorkerPoolTest, ProgressArrivesInOrder) {
  std::vector<std::string> seen;
  WorkerPool::Job job = FakeJob("progress");
  job.on_progress = [&seen](const internal::Progress& p) {
    seen.push_back(absl::StrCat(v1::LowerModelMetadata::State_Name(p.state()), " ",
                                p.targets_done(), "/", p.targets_total()));
  };
  ASSERT_TRUE(Run(job).ok());
  EXPECT_THAT(seen, ElementsAre("LOADING 0/0", "LOWERING 1/2", "SERIALIZING 2/2"));
}

TEST_F(WorkerPoolTest, FloodOfProgressIsPassedOnAtABoundedRate) {
  int seen = 0;
  WorkerPool::Job job = FakeJob("flood");
  job.on_progress = [&seen](const internal::Progress&) { ++seen; };
  const absl::Time began = absl::Now();
  ASSERT_TRUE(Run(job).ok());
  EXPECT_LE(seen, 2 + (absl::Now() - began) / absl::Milliseconds(20));
}

TEST_F(WorkerPoolTest, FloodOfOutputNeitherBlocksNorFails) {
  const auto result = Run("flood-log");
  EXPECT_TRUE(result.ok()) << result.status();
}

TEST_F(WorkerPoolTest, CrashIsTriedAgainWithEmptyArtifactsAndReportedWithSignalPhaseAndOutput) {
  const Fd artifact = FileOf("");
  WorkerPool::Job job = FakeJob("segv-while-serializing");
  job.files = {{internal::Job::File::ARTIFACT, "a", artifact.get()}};
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kWorkerCrashed)) << result.status();
  const std::string message(result.status().message());
  EXPECT_THAT(message, HasSubstr("SIGSEGV"));
  EXPECT_THAT(message, HasSubstr("serializing"));
  EXPECT_THAT(message, HasSubstr("last words"));
  EXPECT_THAT(message, HasSubstr("tried 2 times"));
  EXPECT_EQ(BytesOf(artifact), "artifact");
  EXPECT_EQ(pool_->GetStats().crashes, 2);
  EXPECT_EQ(pool_->GetStats().jobs, 1);
}

TEST_F(WorkerPoolTest, EveryKindOfEndWithoutAnAnswerIsACrash) {
  for (const auto& [action, text] :
       std::vector<std::pair<std::string, std::string>>{{"abort", "SIGABRT"},
                                                        {"nice-exit", "exit code 3"},
                                                        {"stack-overflow", "SIGSEGV"},
                                                        {"garbage", "protocol"},
                                                        {"huge-frame", "protocol"},
                                                        {"empty-frame", "protocol"}}) {
    const auto result = Run(action);
    EXPECT_TRUE(HasReason(result.status(), Reason::kWorkerCrashed)) << action << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(text)) << action;
  }
  EXPECT_TRUE(Run("").ok());
}

TEST_F(WorkerPoolTest, SecondClaimOfNamesBreaksTheProtocol) {
  int claims = 0;
  WorkerPool::Job job = FakeJob("claim-twice");
  job.claim_names = [&claims](const internal::ClaimNames&) {
    ++claims;
    return internal::NamesGranted();
  };
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kWorkerCrashed)) << result.status();
  EXPECT_EQ(claims, 2) << "once for each try";
}

TEST_F(WorkerPoolTest, KillThatIsNotOursMeansThatMemoryRanOut) {
  const auto result = Run("kill-self");
  EXPECT_TRUE(HasReason(result.status(), Reason::kOutOfMemory)) << result.status();
  EXPECT_EQ(pool_->GetStats().out_of_memory, 2) << "tried again first";
  EXPECT_EQ(pool_->GetStats().crashes, 0);
}

TEST_F(WorkerPoolTest, HalfAFrameEndsAtTheDeadline) {
  WorkerPool::Job job = FakeJob("half-frame");
  job.deadline = absl::Now() + absl::Milliseconds(200);
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kDeadlineExceeded)) << result.status();
  EXPECT_EQ(pool_->GetStats().deadline_exceeded, 1);
  EXPECT_TRUE(pool_->Health().ok());
}

TEST_F(WorkerPoolTest, ModelThatCrashedTwiceIsRefusedWithoutAJobUntilTheQuarantineIsOver) {
  WorkerPool::Options options = FakeOptions();
  options.crash_quarantine = absl::Seconds(2);
  StartPool(options);
  WorkerPool::Job job = FakeJob("segv");
  job.request.mutable_model()->set_hash("a");
  EXPECT_FALSE(Run(job).ok());
  const absl::Time crashed = absl::Now();

  job.request.set_artifact_stem("");
  const auto refused = Run(job);
  EXPECT_TRUE(HasReason(refused.status(), Reason::kWorkerCrashed)) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("SIGSEGV"));
  EXPECT_GT(RetryDelayOf(refused.status()), absl::ZeroDuration());
  EXPECT_EQ(pool_->GetStats().jobs, 1) << "no job for the refused one";

  WorkerPool::Job other = FakeJob("");
  other.request.mutable_model()->set_hash("b");
  EXPECT_TRUE(Run(other).ok());
  while (!Run(job).ok()) {
    ASSERT_LT(absl::Now() - crashed, absl::Seconds(10));
  }
  EXPECT_GE(absl::Now() - crashed, absl::Seconds(1.9));
}

class PhaseTest : public PoolTest, public testing::WithParamInterface<const char*> {};

TEST_P(PhaseTest, CancellationEndsTheJobAtOnce) {
  Cancellation cancellation;
  absl::Notification running;
  WorkerPool::Job job = FakeJob(GetParam());
  job.cancellation = &cancellation;
  job.on_progress = [&running](const internal::Progress&) { running.Notify(); };
  absl::Time cancelled;
  std::thread canceller([&] {
    running.WaitForNotification();
    cancelled = absl::Now();
    cancellation.Cancel();
  });
  const auto result = Run(job);
  const absl::Time ended = absl::Now();
  canceller.join();
  EXPECT_TRUE(HasReason(result.status(), Reason::kOperationCancelled)) << result.status();
  EXPECT_LT(ended - cancelled, kLatenessLimit);
}

TEST_P(PhaseTest, DeadlineEndsTheJobAtOnce) {
  WorkerPool::Job job = FakeJob(GetParam());
  job.deadline = absl::Now() + absl::Milliseconds(300);
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kDeadlineExceeded)) << result.status();
  EXPECT_LT(absl::Now() - job.deadline, kLatenessLimit);
}

INSTANTIATE_TEST_SUITE_P(Phases, PhaseTest,
                         testing::Values("hang", "spin", "hang-ignoring-signals"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

// A job that occupies the only worker while it lives.
class Occupied : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    release_ = std::make_unique<Cancellation>();
    occupant_ = std::thread([this] {
      WorkerPool::Job job = FakeJob("hang");
      job.cancellation = release_.get();
      // Once more for every further try.
      job.on_progress = [this](const internal::Progress&) {
        if (!occupied_.HasBeenNotified()) occupied_.Notify();
      };
      (void)Run(job);
    });
    occupied_.WaitForNotification();
  }
  void TearDown() override {
    release_->Cancel();
    occupant_.join();
    release_.reset();
    PoolTest::TearDown();
  }

  std::unique_ptr<Cancellation> release_;
  absl::Notification occupied_;
  std::thread occupant_;
};

TEST_F(Occupied, WaitingForAWorkerEndsWithTheDeadline) {
  WorkerPool::Job job = FakeJob("");
  job.deadline = absl::Now() + absl::Milliseconds(100);
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kDeadlineExceeded)) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("waiting for a worker"));
  EXPECT_LT(absl::Now() - job.deadline, kLatenessLimit);
}

TEST_F(Occupied, WaitingForAWorkerEndsWithACancellation) {
  Cancellation cancellation;
  cancellation.Cancel();
  WorkerPool::Job job = FakeJob("");
  job.cancellation = &cancellation;
  const auto result = Run(job);
  EXPECT_TRUE(HasReason(result.status(), Reason::kOperationCancelled)) << result.status();
}

TEST_F(Occupied, ShutdownEndsWhatRunsAndWhatWaits) {
  std::thread waiting([this] {
    const auto result = Run("");
    EXPECT_TRUE(HasReason(result.status(), Reason::kServerUnavailable)) << result.status();
  });
  pool_->Shutdown();
  pool_->Shutdown();
  waiting.join();
  occupant_.join();
  const auto late = Run("");
  EXPECT_TRUE(HasReason(late.status(), Reason::kServerUnavailable)) << late.status();
  occupant_ = std::thread([] {});
}

TEST_F(Occupied, JobInHandIsTriedAgainWhenTheZygoteIsKilled) {
  const std::vector<int> zygotes = ChildrenOf(::getpid());
  ASSERT_EQ(zygotes.size(), 1u);
  ASSERT_EQ(::kill(zygotes.front(), SIGKILL), 0);
  // The occupant hangs again in a child of the next zygote; the next job runs behind it.
  while (pool_->GetStats().zygote_restarts == 0) std::this_thread::yield();
  release_->Cancel();
  EXPECT_TRUE(Run("").ok());
  EXPECT_EQ(pool_->GetStats().crashes, 0);
}

TEST_F(WorkerPoolTest, StoppedZygoteIsReplaced) {
  WorkerPool::Options options = FakeOptions();
  options.answer_timeout = absl::Milliseconds(200);
  StartPool(options);
  const std::vector<int> zygotes = ChildrenOf(::getpid());
  ASSERT_EQ(zygotes.size(), 1u);
  ASSERT_EQ(::kill(zygotes.front(), SIGSTOP), 0);
  // More jobs than there are children in stock.
  for (int i = 0; i < 5; ++i) {
    const auto result = Run("");
    EXPECT_TRUE(result.ok()) << result.status();
  }
  EXPECT_EQ(pool_->GetStats().zygote_restarts, 1);
}

TEST_F(WorkerPoolTest, IdleChildThatIsKilledIsReplaced) {
  const std::vector<int> zygotes = ChildrenOf(::getpid());
  ASSERT_EQ(zygotes.size(), 1u);
  for (const int child : ChildrenOf(zygotes.front())) ::kill(child, SIGKILL);
  const auto result = Run("");
  EXPECT_TRUE(result.ok()) << result.status();
}

TEST_F(WorkerPoolTest, ManyThreadsShareTwoWorkersWhileZygotesAreKilled) {
  WorkerPool::Options options = FakeOptions();
  options.workers = 2;
  StartPool(options);
  constexpr int kThreads = 64;
  constexpr int kJobsEach = 4;
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kJobsEach; ++j) {
        WorkerPool::Job job = FakeJob("claim");
        job.claim_names = [&](const internal::ClaimNames&) {
          const int now = ++running;
          for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
          }
          std::this_thread::yield();
          --running;
          return internal::NamesGranted();
        };
        const auto result = Run(job);
        EXPECT_TRUE(result.ok()) << result.status();
      }
    });
  }
  for (int kill = 0; kill < 3; ++kill) {
    while (pool_->GetStats().jobs < (kill + 1) * 50) std::this_thread::yield();
    for (const int zygote : ChildrenOf(::getpid())) ::kill(zygote, SIGKILL);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 2);
  EXPECT_EQ(pool_->GetStats().jobs, kThreads * kJobsEach);
  EXPECT_EQ(pool_->GetStats().busy, 0);
  EXPECT_GE(pool_->GetStats().zygote_restarts, 1);
}

TEST_F(WorkerPoolTest, JobsThatDoNotFitInMemoryTogetherRunOneAfterTheOther) {
  WorkerPool::Options options = FakeOptions();
  options.workers = 2;
  options.memory_budget_bytes = 100 << 20;  // Room for one job of 64 MiB and more.
  StartPool(options);
  Cancellation release;
  absl::Notification running;
  std::thread first([&] {
    WorkerPool::Job job = FakeJob("hang");
    job.cancellation = &release;
    job.on_progress = [&](const internal::Progress&) { running.Notify(); };
    (void)Run(job);
  });
  running.WaitForNotification();
  WorkerPool::Job second = FakeJob("");
  second.deadline = absl::Now() + absl::Milliseconds(100);
  const auto result = Run(second);
  EXPECT_TRUE(HasReason(result.status(), Reason::kDeadlineExceeded)) << result.status();
  release.Cancel();
  first.join();
  EXPECT_TRUE(Run("").ok());
}

TEST_F(WorkerPoolTest, ZygoteThatCannotLoadItsLibrariesSaysWhy) {
  for (const auto& [library, text] : std::vector<std::pair<std::string, std::string>>{
           {"broken", "broken.so cannot be loaded"},
           {"exits", "exit code 7"},
           {"slow", "was not ready within"},
           {"threads", "threads after loading its libraries"}}) {
    WorkerPool::Options options = FakeOptions();
    options.backend_libraries = {library};
    options.start_timeout = library == "slow" ? absl::Milliseconds(200) : absl::Seconds(30);
    const auto pool = WorkerPool::Create(options);
    ASSERT_FALSE(pool.ok()) << library;
    EXPECT_THAT(std::string(pool.status().message()), HasSubstr(text));
  }
}

TEST_F(WorkerPoolTest, ProgramThatIsNotThereIsNamed) {
  WorkerPool::Options options = FakeOptions();
  options.worker_program = "/nowhere/lowerd-worker";
  const auto pool = WorkerPool::Create(options);
  ASSERT_FALSE(pool.ok());
  EXPECT_THAT(std::string(pool.status().message()), HasSubstr("/nowhere/lowerd-worker"));
}

}  // namespace
}  // namespace lowerd::pool
