#include "src/jobs/job_service.h"

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include <sys/wait.h>

#include "src/base/error.h"
#include "test/jobs/fake_replica.h"

namespace lowerd::jobs {
namespace {

class JobServiceTest : public test::DatabaseTest {
 protected:
  std::unique_ptr<Replica> Start(JobService::Options options = {}) {
    return std::make_unique<Replica>(location(), folder().File("blobs"), options);
  }
};

TEST_P(JobServiceTest, RunsWhatIsSubmittedAndRemembersTheResultOverARestart) {
  std::string name;
  {
    auto replica = Start();
    name = replica->service->Submit(Request("ok"))->name;
    const Operation done = Await(*replica->service, name);
    EXPECT_TRUE(done.error.ok()) << done.error;
    EXPECT_EQ(done.result, "result of ok");
    EXPECT_EQ(done.outputs, std::vector<Digest>{Digest::Of("result of ok")});
    EXPECT_TRUE(done.started.has_value() || done.ended.has_value());
  }
  const auto again = Start()->service->Get(name);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->result, "result of ok");
}

TEST_P(JobServiceTest, FailuresAreKeptWithTheirReasonAndNeverCached) {
  auto replica = Start();
  const Operation failed =
      Await(*replica->service, replica->service->Submit(Request("fail"))->name);
  EXPECT_TRUE(HasReason(failed.error, Reason::kBackendFailed)) << failed.error;
  Await(*replica->service, replica->service->Submit(Request("fail"))->name);
  EXPECT_EQ(replica->runner->ran().size(), 2u);
  EXPECT_FALSE(replica->service->TryCached(Request("fail").action_key).has_value());
}

TEST_P(JobServiceTest, SecondIdenticalRequestIsAnsweredWithoutAJobAlsoAfterARestart) {
  {
    auto replica = Start();
    Await(*replica->service, replica->service->Submit(Request("ok"))->name);
    const auto cached = replica->service->TryCached(Request("ok").action_key);
    ASSERT_TRUE(cached.has_value());
    EXPECT_TRUE(cached->done());
    EXPECT_EQ(replica->service->Get(cached->name)->result, "result of ok");
    EXPECT_EQ(replica->runner->ran().size(), 1u);
  }
  auto replica = Start();
  const Operation again = *replica->service->Submit(Request("ok"));
  EXPECT_TRUE(again.done());
  EXPECT_TRUE(again.cached);
  EXPECT_TRUE(replica->runner->ran().empty());
}

TEST_P(JobServiceTest, HitWhoseBlobsAreGoneIsAMiss) {
  {
    auto replica = Start();
    Await(*replica->service, replica->service->Submit(Request("ok"))->name);
  }
  const std::string hex = Digest::Of("result of ok").hex();
  ::unlink(
      absl::StrCat(folder().File("blobs"), "/cas/", hex.substr(0, 2), "/", hex, "-12").c_str());
  auto replica = Start();
  const Operation again = Await(*replica->service, replica->service->Submit(Request("ok"))->name);
  EXPECT_TRUE(again.error.ok()) << again.error;
  EXPECT_EQ(replica->runner->ran().size(), 1u);
}

TEST_P(JobServiceTest, BypassLowersAgain) {
  auto replica = Start();
  Await(*replica->service, replica->service->Submit(Request("ok"))->name);
  JobService::NewOperation request = Request("ok");
  request.bypass_cache = true;
  Await(*replica->service, replica->service->Submit(request)->name);
  EXPECT_EQ(replica->runner->ran().size(), 2u);
}

TEST_P(JobServiceTest, EqualRequestsInFlightShareOneJobAndEachCanBeCancelledAlone) {
  auto replica = Start();
  const Operation first = *replica->service->Submit(Request("hold"));
  const Operation second = *replica->service->Submit(Request("hold"));
  EXPECT_NE(first.name, second.name);
  replica->runner->AwaitRuns(1);
  ASSERT_TRUE(replica->service->Cancel(first.name).ok());
  EXPECT_TRUE(absl::IsCancelled(Await(*replica->service, first.name).error));
  replica->runner->Release();
  EXPECT_EQ(Await(*replica->service, second.name).result, "result of hold");
  EXPECT_EQ(replica->runner->ran().size(), 1u);
}

TEST_P(JobServiceTest, RequestIdGivesTheSameOperationForOneClientOnly) {
  auto replica = Start();
  JobService::NewOperation request = Request("ok");
  request.request_id = "id";
  const std::string name = replica->service->Submit(request)->name;
  Await(*replica->service, name);
  EXPECT_EQ(replica->service->Submit(request)->name, name);
  JobService::NewOperation different = Request("another");
  different.request_id = "id";
  EXPECT_TRUE(HasReason(replica->service->Submit(different).status(), Reason::kInvalidRequest));
  request.client = "other";
  EXPECT_NE(replica->service->Submit(request)->name, name);
}

TEST_P(JobServiceTest, CancelEndsQueuedAndRunningJobs) {
  auto replica = Start(Workers(1));
  const Operation running = *replica->service->Submit(Request("hold 1"));
  replica->runner->AwaitRuns(1);
  const Operation queued = *replica->service->Submit(Request("hold 2"));
  EXPECT_EQ(queued.queue_position, 1);
  ASSERT_TRUE(replica->service->Cancel(queued.name).ok());
  ASSERT_TRUE(replica->service->Cancel(running.name).ok());
  EXPECT_TRUE(HasReason(Await(*replica->service, queued.name).error, Reason::kOperationCancelled));
  EXPECT_TRUE(HasReason(Await(*replica->service, running.name).error, Reason::kOperationCancelled));
  EXPECT_TRUE(replica->service->Cancel(running.name).ok()) << "cancelling twice is no error";
  // The worker is free again.
  EXPECT_TRUE(Await(*replica->service, replica->service->Submit(Request("ok"))->name).error.ok());
  EXPECT_EQ(replica->runner->ran().size(), 2u);
}

TEST_P(JobServiceTest, OnlyDoneOperationsCanBeDeleted) {
  auto replica = Start();
  const std::string name = replica->service->Submit(Request("hold"))->name;
  EXPECT_TRUE(HasReason(replica->service->Delete(name), Reason::kOperationState));
  replica->runner->Release();
  Await(*replica->service, name);
  EXPECT_TRUE(replica->service->Delete(name).ok());
  EXPECT_TRUE(HasReason(replica->service->Get(name).status(), Reason::kResourceNotFound));
  EXPECT_TRUE(HasReason(replica->service->Delete(name), Reason::kResourceNotFound));
}

TEST_P(JobServiceTest, FullQueueSaysWhenToComeBack) {
  JobService::Options options = Workers(1);
  options.max_queued = 2;
  auto replica = Start(options);
  ASSERT_TRUE(replica->service->Submit(Request("hold 0")).ok());
  replica->runner->AwaitRuns(1);
  ASSERT_TRUE(replica->service->Submit(Request("hold 1")).ok());
  ASSERT_TRUE(replica->service->Submit(Request("hold 2")).ok());
  const absl::Status full = replica->service->Submit(Request("hold 3")).status();
  EXPECT_TRUE(HasReason(full, Reason::kQueueFull)) << full;
  EXPECT_GT(RetryDelayOf(full), absl::ZeroDuration());
  // An equal one needs no place.
  EXPECT_TRUE(replica->service->Submit(Request("hold 2")).ok());
  replica->runner->Release();
}

TEST_P(JobServiceTest, OneClientCannotFillTheQueue) {
  JobService::Options options = Workers(1);
  options.max_queued_per_client = 1;
  auto replica = Start(options);
  const auto request = [](const std::string& client, const std::string& what) {
    JobService::NewOperation out = Request(what);
    out.client = client;
    return out;
  };
  ASSERT_TRUE(replica->service->Submit(request("greedy", "hold 0")).ok());
  replica->runner->AwaitRuns(1);
  ASSERT_TRUE(replica->service->Submit(request("greedy", "hold 1")).ok());
  const absl::Status full = replica->service->Submit(request("greedy", "hold 2")).status();
  EXPECT_TRUE(HasReason(full, Reason::kQueueFull)) << full;
  EXPECT_GT(RetryDelayOf(full), absl::ZeroDuration());
  EXPECT_TRUE(replica->service->Submit(request("modest", "hold 3")).ok());
  replica->runner->Release();
}

TEST_P(JobServiceTest, HigherPriorityFirstAndClientsTakeTurns) {
  auto replica = Start(Workers(1));
  ASSERT_TRUE(replica->service->Submit(Request("hold first")).ok());
  replica->runner->AwaitRuns(1);
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    names.push_back(replica->service->Submit(Request(absl::StrCat("greedy ", i), "greedy"))->name);
  }
  names.push_back(replica->service->Submit(Request("modest", "modest"))->name);
  JobService::NewOperation urgent = Request("urgent", "greedy");
  urgent.priority = 10;
  names.push_back(replica->service->Submit(urgent)->name);
  replica->runner->Release();
  for (const std::string& name : names) Await(*replica->service, name);
  EXPECT_EQ(replica->runner->ran(), (std::vector<std::string>{"hold first", "urgent", "modest",
                                                              "greedy 0", "greedy 1", "greedy 2"}));
}

TEST_P(JobServiceTest, WatchSeesProgressAndEndsWithTheResult) {
  auto replica = Start();
  const std::string name = replica->service->Submit(Request("hold"))->name;
  replica->runner->AwaitRuns(1);
  absl::Mutex mutex;
  std::vector<State> states;
  auto watch =
      *replica->service->WatchOperation(name, [&](const absl::StatusOr<Operation>& operation) {
        absl::MutexLock lock(&mutex);
        states.push_back(operation->progress.state);
      });
  replica->runner->Release();
  absl::MutexLock lock(&mutex);
  auto done = [&] { return !states.empty() && states.back() == State::kDone; };
  mutex.Await(absl::Condition(&done));
  EXPECT_NE(states.front(), State::kDone);
}

TEST_P(JobServiceTest, ListsNewestFirstInPagesWithFilters) {
  auto replica = Start();
  std::set<std::string> names;
  for (int i = 0; i < 7; ++i)
    names.insert(replica->service->Submit(Request(absl::StrCat("ok ", i)))->name);
  const std::string failed = replica->service->Submit(Request("fail"))->name;
  for (const std::string& name : names) Await(*replica->service, name);
  Await(*replica->service, failed);
  std::set<std::string> listed;
  std::string token;
  absl::Time previous = absl::InfiniteFuture();
  JobService::Filter good;
  good.failed = false;
  do {
    const auto page = replica->service->List(good, 3, token);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const Operation& operation : page->operations) {
      EXPECT_TRUE(listed.insert(operation.name).second);
      EXPECT_LE(operation.created, previous);
      previous = operation.created;
    }
    token = page->next_page_token;
  } while (!token.empty());
  EXPECT_EQ(listed, names);
  JobService::Filter bad;
  bad.failed = true;
  EXPECT_EQ(replica->service->List(bad, 10, "")->operations.size(), 1u);
  EXPECT_TRUE(HasReason(replica->service->List({}, 3, "junk").status(), Reason::kInvalidRequest));
}

TEST_P(JobServiceTest, MissingInputsAreRefusedAtTheStart) {
  auto replica = Start();
  JobService::NewOperation request = Request("ok");
  request.inputs = {Digest::Of("absent")};
  EXPECT_TRUE(HasReason(replica->service->Submit(request).status(), Reason::kBlobMissing));
}

TEST_P(JobServiceTest, DrainGivesJobsBackAndARestartRunsThem) {
  std::string name;
  {
    auto replica = Start();
    name = replica->service->Submit(Request("hold"))->name;
    replica->runner->AwaitRuns(1);
    replica->service->Drain(absl::Milliseconds(20));
    EXPECT_TRUE(
        HasReason(replica->service->Submit(Request("ok")).status(), Reason::kServerUnavailable));
    EXPECT_FALSE(replica->service->Get(name)->done());
  }
  auto replica = Start();
  replica->runner->Release();
  EXPECT_EQ(Await(*replica->service, name).result, "result of hold");
}

TEST_P(JobServiceTest, FinishedOperationsExpire) {
  JobService::Options options;
  options.retention = absl::ZeroDuration();
  options.lease = absl::Milliseconds(60);
  auto replica = Start(options);
  const std::string name = replica->service->Submit(Request("ok"))->name;
  while (replica->service->Get(name).ok()) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(HasReason(replica->service->Get(name).status(), Reason::kResourceNotFound));
}

TEST_P(JobServiceTest, ManyClientsGetEachTheirOwnResult) {
  auto replica = Start(Workers(4));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 32; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        const std::string text =
            i % 2 == 0 ? absl::StrCat("ok ", i) : absl::StrCat("ok ", t, "/", i);
        const auto submitted = replica->service->Submit(Request(text, absl::StrCat("client ", t)));
        wrong += !submitted.ok() ||
                 Await(*replica->service, submitted->name).result != "result of " + text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  // The shared ones ran once each, or were answered from the cache.
  const auto ran = replica->runner->ran();
  EXPECT_EQ(std::set<std::string>(ran.begin(), ran.end()).size(), ran.size());
}

TEST_P(JobServiceTest, WhatWasAcknowledgedBeforeKill9Completes) {
  constexpr unsigned kSeed = 59921;
  std::mt19937 random(kSeed);
  std::set<std::string> acknowledged;
  for (int round = 0; round < 20; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto replica = Start(Workers(2, absl::StrCat("child ", round)));
      for (int i = 0;; ++i) {
        const auto operation =
            replica->service->Submit(Request(absl::StrCat("ok ", round, "/", i)));
        if (!operation.ok()) continue;
        const std::string line = operation->name + "\n";
        [[maybe_unused]] const ssize_t n = ::write(pipe[1], line.data(), line.size());
      }
    }
    ::close(pipe[1]);
    std::string text;
    char buffer[65536];
    const auto read_some = [&] {
      const ssize_t n = ::read(pipe[0], buffer, sizeof buffer);
      if (n > 0) text.append(buffer, static_cast<size_t>(n));
      return n > 0;
    };
    // From the first acknowledgement on, however long the start took.
    EXPECT_TRUE(read_some());
    ::usleep(random() % 60'000);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    while (read_some()) {
    }
    ::close(pipe[0]);
    for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      acknowledged.insert(text.substr(0, end));
    }
  }
  ASSERT_FALSE(acknowledged.empty()) << "seed " << kSeed;
  JobService::Options options = Workers(2, "survivor");
  // Dead replicas' leases on PostgreSQL run out first.
  options.lease = absl::Milliseconds(200);
  auto replica = Start(options);
  for (const std::string& name : acknowledged) {
    const Operation done = Await(*replica->service, name);
    EXPECT_TRUE(done.error.ok()) << done.error << ", seed " << kSeed;
    for (const Digest& output : done.outputs) {
      EXPECT_EQ(Digest::Of(*blob::GetBytes(*replica->blobs, output, 1000)), output);
    }
  }
}

TEST_P(JobServiceTest, DoneOperationsKeepTheirStartAttemptAndTargets) {
  auto replica = Start(Workers(1));
  const Operation done = Await(*replica->service, replica->service->Submit(Request("ok"))->name);
  EXPECT_TRUE(done.started.has_value());
  EXPECT_EQ(done.attempt, 1);
  EXPECT_EQ(done.progress.targets_total, 2);
}

TEST_P(JobServiceTest, StateFilterFindsWhatRuns) {
  auto replica = Start(Workers(1));
  const std::string name = replica->service->Submit(Request("hold"))->name;
  ASSERT_TRUE(
      Eventually([&] { return replica->service->Get(name)->progress.state == State::kLowering; }));
  JobService::Filter filter;
  filter.state = State::kLowering;
  EXPECT_EQ(replica->service->List(filter, 10, "")->operations.size(), 1u);
  filter.state = State::kQueued;
  EXPECT_EQ(replica->service->List(filter, 10, "")->operations.size(), 0u);
}

TEST_P(JobServiceTest, OperationThatJoinsARunningJobStandsWhereTheJobStands) {
  auto replica = Start(Workers(1));
  (void)replica->service->Submit(Request("hold"));
  replica->runner->AwaitRuns(1);
  const auto joined = replica->service->Submit(Request("hold"));
  JobService::Filter filter;
  filter.state = State::kQueued;
  EXPECT_TRUE(
      Eventually([&] { return replica->service->List(filter, 10, "")->operations.empty(); }));
  EXPECT_TRUE(replica->service->Get(joined->name)->started.has_value());
}

TEST_P(JobServiceTest, RequestJoinsOnlyJobsThatMayTakeAsLongAsItself) {
  auto replica = Start(Workers(4));
  auto request = Request("hold");
  const auto submit = [&](absl::Duration timeout) {
    request.timeout = timeout;
    EXPECT_TRUE(replica->service->Submit(request).ok());
  };
  submit(absl::Seconds(10));
  replica->runner->AwaitRuns(1);
  submit(absl::Seconds(5));
  submit(absl::Seconds(10));
  submit(absl::Seconds(20));
  replica->runner->AwaitRuns(2);
  replica->runner->Release();
  ASSERT_TRUE(Eventually([&] { return AllDone(*replica->service); }));
  EXPECT_EQ(replica->runner->ran().size(), 2u);
}

TEST_P(JobServiceTest, JoiningAQueuedJobCanRaiseItsPriority) {
  auto replica = Start(Workers(1));
  (void)replica->service->Submit(Request("hold"));
  replica->runner->AwaitRuns(1);
  (void)replica->service->Submit(Request("ok first"));
  (void)replica->service->Submit(Request("ok second"));
  auto urgent = Request("ok second");
  urgent.priority = 5;
  const std::string name = replica->service->Submit(urgent)->name;
  EXPECT_EQ(replica->service->Get(name)->queue_position, 1);
  replica->runner->Release();
  ASSERT_TRUE(Eventually([&] { return AllDone(*replica->service); }));
  EXPECT_EQ(replica->runner->ran(), (std::vector<std::string>{"hold", "ok second", "ok first"}));
}

TEST_P(JobServiceTest, OrderlyRestartsAreNoFailedAttempts) {
  std::string name;
  for (int i = 0; i < 7; ++i) {
    auto replica = Start(Workers(1));
    if (i == 0) name = replica->service->Submit(Request("hold"))->name;
    replica->runner->AwaitRuns(1);
  }
  auto replica = Start(Workers(1));
  replica->runner->Release();
  const Operation done = Await(*replica->service, name);
  EXPECT_TRUE(done.error.ok()) << done.error;
  EXPECT_EQ(done.attempt, 1);
}

TEST_P(JobServiceTest, CancelledRunningJobIsNotRunAgainAfterARestart) {
  {
    auto replica = Start(Workers(1));
    const std::string name = replica->service->Submit(Request("hold"))->name;
    replica->runner->AwaitRuns(1);
    ASSERT_TRUE(replica->service->Cancel(name).ok());
    // The end of the job is never written, as when the process is killed.
    replica->database->failing = true;
  }
  JobService::Options options = Workers(1);
  options.lease = absl::Milliseconds(1);
  auto replica = Start(options);
  (void)Await(*replica->service, replica->service->Submit(Request("ok"))->name);
  EXPECT_EQ(replica->runner->ran(), std::vector<std::string>{"ok"});
}

TEST_P(JobServiceTest, EndThatCannotBeWrittenIsWrittenWhenTheStoreIsBack) {
  auto replica = Start(Workers(1));
  const std::string name = replica->service->Submit(Request("hold"))->name;
  replica->runner->AwaitRuns(1);
  replica->database->failing = true;
  replica->runner->Release();
  ASSERT_TRUE(Eventually([&] { return replica->database->failed >= 3; }));
  replica->database->failing = false;
  EXPECT_TRUE(Await(*replica->service, name).error.ok());
  EXPECT_EQ(replica->runner->ran().size(), 1u);
}

TEST_P(JobServiceTest, QueueGoesOnAfterWritesThatFailed) {
  auto replica = Start(Workers(1));
  (void)replica->service->Submit(Request("hold"));
  replica->runner->AwaitRuns(1);
  const std::string next = replica->service->Submit(Request("ok"))->name;
  replica->database->failing = true;
  replica->runner->Release();
  ASSERT_TRUE(Eventually([&] { return replica->database->failed >= 3; }));
  replica->database->failing = false;
  EXPECT_TRUE(Await(*replica->service, next).error.ok());
}

TEST_P(JobServiceTest, NoPinOutlivesAJobThatEndsBeforeItsSubmitReturns) {
  auto replica = Start(Workers(1));
  auto request = Request("ok slow client");
  request.inputs = {*blob::PutBytes(*replica->blobs, "model")};
  replica->database->submitter = std::this_thread::get_id();
  replica->database->after_write = [&] {
    // Another submission wakes the runner, which takes the older job first.
    std::thread([&] {
      (void)Await(*replica->service, replica->service->Submit(Request("ok"))->name);
    }).join();
  };
  ASSERT_TRUE(replica->service->Submit(request).ok());
  EXPECT_TRUE(AllDone(*replica->service));
  EXPECT_TRUE(Eventually([&] { return replica->blobs->pins == 0; })) << replica->blobs->pins;
}

TEST_P(JobServiceTest, PinsEndWithTheirJobsWhenManySubmit) {
  auto replica = Start(Workers(4));
  const Digest input = *blob::PutBytes(*replica->blobs, "model");
  std::vector<std::thread> clients;
  std::atomic<int> number = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        auto request = Request(absl::StrCat("fail ", ++number));
        request.inputs = {input};
        EXPECT_TRUE(replica->service->Submit(request).ok());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] { return AllDone(*replica->service); }));
  EXPECT_TRUE(Eventually([&] { return replica->blobs->pins == 0; })) << replica->blobs->pins;
}

INSTANTIATE_TEST_SUITE_P(Engines, JobServiceTest, test::BothEngines(), test::EngineName);

// ---- several replicas, which only PostgreSQL can have

}  // namespace
}  // namespace lowerd::jobs
