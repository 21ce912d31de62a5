#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/blob/disk_blob_store.h"
#include "src/jobs/job_service.h"
#include "test/support/databases.h"

namespace lowerd::jobs {

// Ends jobs when it is told to. The request says how: "ok", "fail" or "hold".
class FakeRunner final : public JobRunner {
 public:
  explicit FakeRunner(blob::BlobStore& blobs) : blobs_(blobs) {}

  absl::StatusOr<JobResult> Run(const Operation& operation, const Cancellation& cancellation,
                                const std::function<void(const Progress&)>& progress) override {
    {
      absl::MutexLock lock(&mutex_);
      ran_.push_back(operation.request);
    }
    progress({State::kLowering, 1, 2});
    if (absl::StrContains(operation.request, "hold")) {
      absl::MutexLock lock(&mutex_);
      auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return released_ || cancellation.cancelled();
      };
      while (!mutex_.AwaitWithTimeout(absl::Condition(&over), absl::Milliseconds(10))) {
      }
    }
    if (cancellation.cancelled()) return MakeError(Reason::kOperationCancelled, "stopped");
    if (absl::StrContains(operation.request, "fail")) {
      return MakeError(Reason::kBackendFailed, "it would not");
    }
    JobResult result;
    result.result = "result of " + operation.request;
    result.outputs = {*blob::PutBytes(blobs_, result.result)};
    return result;
  }

  void Release() {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }
  std::vector<std::string> ran() {
    absl::MutexLock lock(&mutex_);
    return ran_;
  }
  void AwaitRuns(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ran_.size() >= count; };
    mutex_.Await(absl::Condition(&enough));
  }

 private:
  blob::BlobStore& blobs_;
  absl::Mutex mutex_;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> ran_ ABSL_GUARDED_BY(mutex_);
};

// A state store that can be cut off.
class FaultyDatabase final : public state::Database {
 public:
  explicit FaultyDatabase(std::unique_ptr<state::Database> real) : real_(std::move(real)) {}

  Engine engine() const override { return real_->engine(); }
  absl::Status Write(const std::function<absl::Status(soci::session&)>& body) override {
    if (failing) {
      ++failed;
      return MakeError(Reason::kInternalError, "the disk is full");
    }
    const absl::Status status = real_->Write(body);
    // Only the submitter looks at it.
    if (std::this_thread::get_id() == submitter && after_write) after_write();
    return status;
  }
  absl::Status Read(const std::function<absl::Status(soci::session&)>& body) override {
    return real_->Read(body);
  }

  std::atomic<bool> failing = false;
  // Called before a write of the thread `submitter` returns. To be set by that thread, or before it
  // is named.
  std::function<void()> after_write;
  std::atomic<std::thread::id> submitter;
  // Writes that were refused.
  std::atomic<int> failed = 0;

 private:
  const std::unique_ptr<state::Database> real_;
};

// A blob store that counts its pins.
class PinCountingStore final : public blob::BlobStore {
 public:
  explicit PinCountingStore(std::shared_ptr<blob::BlobStore> real) : real_(std::move(real)) {}

  absl::StatusOr<std::vector<Digest>> FindMissing(absl::Span<const Digest> digests) override {
    return real_->FindMissing(digests);
  }
  absl::StatusOr<Fd> Open(const Digest& digest) override { return real_->Open(digest); }
  absl::StatusOr<std::unique_ptr<blob::BlobWriter>> StartWrite(const Digest& digest,
                                                               absl::string_view upload) override {
    return real_->StartWrite(digest, upload);
  }
  absl::StatusOr<UploadState> QueryWrite(const Digest& digest, absl::string_view upload) override {
    return real_->QueryWrite(digest, upload);
  }
  absl::StatusOr<Fd> CreateTemporary() override { return real_->CreateTemporary(); }
  absl::StatusOr<Digest> Adopt(Fd file) override { return real_->Adopt(std::move(file)); }
  absl::StatusOr<std::unique_ptr<blob::Pin>> PinAll(absl::Span<const Digest> digests) override {
    LOWERD_ASSIGN_OR_RETURN(std::unique_ptr<blob::Pin> pin, real_->PinAll(digests));
    return std::make_unique<CountedPin>(std::move(pin), pins);
  }
  absl::Status Verify(const Digest& digest) override { return real_->Verify(digest); }
  Stats GetStats() const override { return real_->GetStats(); }

  std::atomic<int> pins = 0;

 private:
  class CountedPin final : public blob::Pin {
   public:
    CountedPin(std::unique_ptr<blob::Pin> pin, std::atomic<int>& count)
        : pin_(std::move(pin)), count_(count) {
      ++count_;
    }
    ~CountedPin() override { --count_; }

   private:
    const std::unique_ptr<blob::Pin> pin_;
    std::atomic<int>& count_;
  };

  const std::shared_ptr<blob::BlobStore> real_;
};

// One process' worth of the service.
struct Replica {
  Replica(const std::string& location, const std::string& blobs_folder, JobService::Options options)
      : Replica(location, OpenBlobs(blobs_folder), std::move(options)) {}

  Replica(const std::string& location, std::shared_ptr<blob::BlobStore> shared_blobs,
          JobService::Options options) {
    database = std::make_unique<FaultyDatabase>(*state::Database::Open(location));
    blobs = std::make_unique<PinCountingStore>(std::move(shared_blobs));
    runner = std::make_unique<FakeRunner>(*blobs);
    if (options.replica.empty()) options.replica = "one";
    options.poll = absl::Milliseconds(20);
    service = *JobService::Create(options, *database, *blobs, *runner);
  }

  static std::shared_ptr<blob::BlobStore> OpenBlobs(const std::string& folder) {
    blob::DiskBlobStore::Options options;
    options.directory = folder;
    options.fsync = false;
    return *blob::DiskBlobStore::Create(options);
  }

  std::unique_ptr<FaultyDatabase> database;
  std::unique_ptr<PinCountingStore> blobs;
  std::unique_ptr<FakeRunner> runner;
  std::unique_ptr<JobService> service;
};

inline JobService::NewOperation Request(const std::string& request,
                                        const std::string& client = "farm") {
  JobService::NewOperation out;
  out.client = client;
  out.action_key = Digest::Of(request).hex();
  out.request = request;
  return out;
}

// The operation when it is done.
inline Operation Await(JobService& service, const std::string& name) {
  absl::Notification done;
  Operation last;
  auto watch = service.WatchOperation(name, [&](const absl::StatusOr<Operation>& operation) {
    if (!operation.ok()) {
      last.error = operation.status();
      done.Notify();
    } else if (operation->done()) {
      last = *operation;
      done.Notify();
    }
  });
  EXPECT_TRUE(watch.ok()) << watch.status();
  if (watch.ok()) done.WaitForNotification();
  return last;
}

// Whether it becomes true in good time.
inline bool Eventually(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (absl::Now() < end) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return condition();
}

// No operation is unfinished.
inline bool AllDone(JobService& service) {
  JobService::Filter unfinished;
  unfinished.done = false;
  const auto page = service.List(unfinished, 1, "");
  return page.ok() && page->operations.empty();
}

inline JobService::Options Workers(int workers, const std::string& replica = "one") {
  JobService::Options options;
  options.workers = workers;
  options.replica = replica;
  options.max_queued = 100'000;
  return options;
}

}  // namespace lowerd::jobs
