#include <atomic>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include <soci/soci.h>
#include <sys/wait.h>

#include "test/jobs/fake_replica.h"

// Several servers on one PostgreSQL.

namespace lowerd::jobs {
namespace {

class ReplicasTest : public test::DatabaseTest {
 protected:
  std::unique_ptr<Replica> Start(const std::string& name, JobService::Options options) {
    options.replica = name;
    return std::make_unique<Replica>(location(), folder().File("blobs-" + name), options);
  }
};

TEST_P(ReplicasTest, ShareWorkCacheAndWatches) {
  JobService::Options first, second;
  first.replica = "first";
  second.replica = "second";
  Replica one(location(), folder().File("blobs"), first),
      two(location(), folder().File("blobs2"), second);
  one.runner->Release();
  two.runner->Release();
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i)
    names.push_back(one.service->Submit(Request(absl::StrCat("ok ", i)))->name);
  // Started on one, watched on the other.
  for (const std::string& name : names) EXPECT_TRUE(Await(*two.service, name).error.ok());
  EXPECT_EQ(one.runner->ran().size() + two.runner->ran().size(), 20u);
}

TEST_P(ReplicasTest, DeadReplicasJobRunsElsewhereAndCancelReachesTheOther) {
  JobService::Options options;
  options.lease = absl::Milliseconds(300);
  std::string name;
  const pid_t pid = ::fork();
  if (pid == 0) {
    JobService::Options dying = options;
    dying.replica = "dying";
    Replica replica(location(), folder().File("blobs"), dying);
    (void)replica.service->Submit(Request("hold"));
    replica.runner->AwaitRuns(1);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(pid, nullptr, 0);
  options.replica = "second";
  Replica two(location(), folder().File("blobs"), options);
  two.runner->AwaitRuns(1);
  name = two.service->List({}, 1, "")->operations.at(0).name;
  options.replica = "third";
  options.workers = 1;
  Replica three(location(), folder().File("blobs3"), options);
  ASSERT_TRUE(three.service->Cancel(name).ok());
  EXPECT_TRUE(absl::IsCancelled(Await(*two.service, name).error));
  // The runner was told, so that the worker is free.
  EXPECT_TRUE(Await(*two.service, two.service->Submit(Request("ok"))->name).error.ok());
}

TEST_P(ReplicasTest, EveryAcknowledgedOperationEndsWhenEqualRequestsMeetJobsThatAreEnding) {
  auto one = Start("one", Workers(2)), two = Start("two", Workers(2));
  std::vector<std::thread> clients;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      JobService& service = i % 2 == 0 ? *one->service : *two->service;
      for (int j = 0; j < 200; ++j) {
        const auto request = Request(absl::StrCat("fail ", j % 3), absl::StrCat("client ", i));
        if (!service.Submit(request).ok()) ++refused;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] { return AllDone(*one->service); }));
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(one->service->GetStats().queued, 0);
}

TEST_P(ReplicasTest, EqualRequestsAtOnceAreLoweredOnce) {
  const std::shared_ptr<blob::BlobStore> blobs = Replica::OpenBlobs(folder().File("blobs"));
  Replica one(location(), blobs, Workers(2, "one")), two(location(), blobs, Workers(2, "two"));
  constexpr int kRequests = 50;
  auto submit = [](JobService& service) {
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(service.Submit(Request(absl::StrCat("ok ", i))).ok());
    }
  };
  std::thread other([&] { submit(*two.service); });
  submit(*one.service);
  other.join();
  ASSERT_TRUE(Eventually([&] { return AllDone(*one.service); }));
  EXPECT_EQ(one.runner->ran().size() + two.runner->ran().size(), size_t{kRequests});
}

TEST_P(ReplicasTest, OneRequestIdAtTwoReplicasAtOnceIsOneOperation) {
  auto one = Start("one", Workers(1)), two = Start("two", Workers(1));
  for (int i = 0; i < 50; ++i) {
    auto request = Request(absl::StrCat("ok ", i));
    request.request_id = absl::StrCat("id ", i);
    absl::StatusOr<Operation> first, second;
    std::thread other([&] { first = one->service->Submit(request); });
    second = two->service->Submit(request);
    other.join();
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(first->name, second->name);
  }
}

TEST_P(ReplicasTest, ReplicaThatComesBackTooLateLeavesItsJobToTheNewOwner) {
  JobService::Options options = Workers(1);
  options.lease = absl::Milliseconds(300);
  auto one = Start("one", options);
  const std::string name = one->service->Submit(Request("hold"))->name;
  one->runner->AwaitRuns(1);
  one->database->failing = true;
  auto two = Start("two", options);
  two->runner->AwaitRuns(1);
  one->database->failing = false;
  // It notices, stops, and does not give back what is not its own.
  EXPECT_TRUE(Eventually([&] { return one->service->GetStats().running == 0; }));
  one->service->Drain(absl::ZeroDuration());
  EXPECT_EQ(two->service->GetStats().running, 1);
  EXPECT_EQ(two->service->GetStats().queued, 0);
  two->runner->Release();
  EXPECT_TRUE(Await(*two->service, name).error.ok());
  EXPECT_EQ(two->runner->ran().size(), 1u);
}

TEST_P(ReplicasTest, PinOfAJobThatAnotherReplicaEndsIsDropped) {
  JobService::Options options = Workers(1);
  options.lease = absl::Milliseconds(300);
  auto one = Start("one", Workers(0)), two = Start("two", options);
  auto request = Request("ok");
  request.inputs = {*blob::PutBytes(*one->blobs, "model")};
  options.workers = 0;
  one.reset();
  one = Start("one", options);
  const std::string name = one->service->Submit(request)->name;
  EXPECT_TRUE(Await(*two->service, name).error.ok());
  EXPECT_TRUE(Eventually([&] { return one->blobs->pins == 0; })) << one->blobs->pins;
}

TEST_P(ReplicasTest, JobsGoOnWhenTheDatabaseIsBack) {
  auto one = Start("one", Workers(2));
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) {
    names.push_back(one->service->Submit(Request(absl::StrCat(i < 2 ? "hold " : "ok ", i)))->name);
  }
  one->runner->AwaitRuns(2);
  Cluster().Stop();
  one->runner->Release();
  EXPECT_TRUE(
      HasReason(one->service->Submit(Request("during")).status(), Reason::kServerUnavailable));
  Cluster().Start();
  for (const std::string& name : names) EXPECT_TRUE(Await(*one->service, name).error.ok());
}

TEST_P(ReplicasTest, MayStartAtOnceOnAFreshDatabase) {
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(6);
  for (absl::Status& status : statuses) {
    threads.emplace_back([&] { status = state::Database::Open(location()).status(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Postgresql, ReplicasTest,
                         testing::Values(state::Database::Engine::kPostgresql), test::EngineName);

}  // namespace
}  // namespace lowerd::jobs
