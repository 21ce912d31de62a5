#include "src/jobs/job_service.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "src/base/error.h"
#include "src/jobs/action_cache.h"
#include "src/jobs/operation_store.h"
#include "src/state/database.h"

namespace lowerd::jobs {
namespace {

constexpr absl::string_view kNamePrefix = "operations/";
// Names of operations that were answered from the cache and have no row.
constexpr absl::string_view kCachedPrefix = "operations/cached-";
constexpr size_t kCacheEntries = 20'000;
constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1000;
// A job that took its server down so often is given up.
constexpr int kMaxAttempts = 5;
// Bounds of what a client is told to wait when the queue is full.
constexpr absl::Duration kMinRetry = absl::Seconds(1);
constexpr absl::Duration kMaxRetry = absl::Seconds(60);
// Clients whose turn is remembered.
constexpr size_t kMaxServed = 10'000;

// 128 random bits from the system: unique over all replicas and days, and nobody can guess another
// client's.
std::string NewId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

absl::Status CancelledByCaller(absl::string_view name) {
  return MakeError(Reason::kOperationCancelled, absl::StrCat(name, " was cancelled"));
}

Operation CachedOperation(absl::string_view action_key, const CachedAction& action) {
  Operation out;
  out.name = absl::StrCat(kCachedPrefix, action_key);
  out.action_key = std::string(action_key);
  out.progress.state = State::kDone;
  out.cached = true;
  out.result = action.result;
  out.outputs = action.outputs;
  out.created = out.updated = absl::Now();
  out.ended = out.created;
  return out;
}

class JobServiceImpl final : public JobService {
 public:
  JobServiceImpl(Options options, state::Database& database, blob::BlobStore& blobs,
                 JobRunner& runner)
      : options_(std::move(options)),
        database_(database),
        blobs_(blobs),
        runner_(runner),
        cache_(kCacheEntries) {}

  ~JobServiceImpl() override {
    Drain(absl::ZeroDuration());
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Init() {
    LOWERD_RETURN_IF_ERROR(database_.Write([&](soci::session& session) {
      OperationStore store(session);
      // Only one process has a SQLite file open, so whatever runs there runs no more.
      store.RequeueExpired(shared() ? absl::Now() : absl::InfiniteFuture());
      return absl::OkStatus();
    }));
    std::vector<Job> queued;
    LOWERD_RETURN_IF_ERROR(database_.Read([&](soci::session& session) {
      queued = OperationStore(session).QueuedJobs();
      return absl::OkStatus();
    }));
    for (const Job& job : queued) {
      // An input that is gone shows when the job runs.
      if (auto pin = blobs_.PinAll(job.inputs); pin.ok()) Keep(job.id, *std::move(pin), true);
    }
    for (int i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { RunLoop(); });
    threads_.emplace_back([this] { CareLoop(); });
    return absl::OkStatus();
  }

  std::optional<Operation> TryCached(absl::string_view action_key) override {
    if (!blobs_.local()) return std::nullopt;
    const std::shared_ptr<const CachedAction> action = cache_.Find(action_key);
    if (action && OutputsAreHere(*action)) {
      ++hits_;
      return CachedOperation(action_key, *action);
    }
    ++misses_;
    return std::nullopt;
  }

  absl::StatusOr<Operation> Submit(NewOperation request) override;
  absl::StatusOr<Operation> Get(absl::string_view name) override;
  absl::StatusOr<Page> List(const Filter& filter, int page_size,
                            absl::string_view page_token) override;
  absl::Status Cancel(absl::string_view name) override;
  absl::Status Delete(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Watch>> WatchOperation(
      absl::string_view name,
      std::function<void(const absl::StatusOr<Operation>&)> on_change) override;
  Stats GetStats() const override;
  void Drain(absl::Duration grace) override;

 private:
  // A job that this process runs.
  struct Running {
    explicit Running(const Job& j) : job(j), started(absl::Now()) {}

    const Job job;
    const absl::Time started;
    Cancellation cancellation;
    // Guarded by mutex_, as what follows.
    Progress progress;
    // Not yet in the state store.
    bool changed = false;
  };

  struct KeptPin {
    std::unique_ptr<blob::Pin> pin;
    // The job's row has been committed.
    bool queued = false;
  };

  struct Watcher {
    std::string name;
    std::function<void(const absl::StatusOr<Operation>&)> on_change;
    // Held during a call, so that calls do not overlap and the handle's end can wait for one.
    absl::Mutex calling;
    bool ended ABSL_GUARDED_BY(calling) = false;
    absl::Time seen ABSL_GUARDED_BY(calling) = absl::InfinitePast();
  };

  class WatchHandle final : public Watch {
   public:
    WatchHandle(JobServiceImpl& service, std::shared_ptr<Watcher> watcher)
        : service_(service), watcher_(std::move(watcher)) {}
    ~WatchHandle() override {
      {
        absl::MutexLock lock(&service_.watch_mutex_);
        service_.watchers_.erase(watcher_);
      }
      absl::MutexLock lock(&watcher_->calling);
      watcher_->ended = true;
    }

   private:
    JobServiceImpl& service_;
    const std::shared_ptr<Watcher> watcher_;
  };

  bool OutputsAreHere(const CachedAction& action) {
    const auto missing = blobs_.FindMissing(action.outputs);
    return missing.ok() && missing->empty();
  }

  void Keep(const std::string& job, std::unique_ptr<blob::Pin> pin, bool queued) {
    absl::MutexLock lock(&mutex_);
    pins_[job] = {std::move(pin), queued};
  }

  // Other replicas may work on the same state.
  bool shared() const { return database_.engine() == state::Database::Engine::kPostgresql; }

  // When a place in a full queue may be free.
  absl::Duration QueueFullDelay();

  // Adds what only memory knows: fresh progress, place in the queue.
  void Complete(OperationStore& store, Operation& operation);

  void RunLoop();
  void RunOne(const Job& job);
  void OnProgress(Running& running, const Progress& progress);
  void EndJob(const std::shared_ptr<Running>& running, const absl::StatusOr<JobResult>& result);
  // Brings the state store up to date with what running jobs have reported.
  absl::Status FlushProgress();
  // Stops what runs here and is not wanted or not ours any more, and queues again what only seems
  // to run here.
  void StopUnwanted();
  // Other replicas end jobs whose inputs are pinned here.
  void DropPins();
  absl::StatusOr<std::optional<Job>> ClaimNext();
  void CareLoop();
  void Notify(const std::vector<std::string>& names);
  void NotifyOperationsOf(const std::string& job);
  void Call(Watcher& watcher);
  void WakeRunners() {
    absl::MutexLock lock(&mutex_);
    work_ = true;
  }

  const Options options_;
  state::Database& database_;
  blob::BlobStore& blobs_;
  JobRunner& runner_;
  ActionCache cache_;
  std::atomic<int64_t> hits_ = 0;
  std::atomic<int64_t> misses_ = 0;

  mutable absl::Mutex mutex_;
  // There may be something to claim.
  bool work_ ABSL_GUARDED_BY(mutex_) = true;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<Running>> running_ ABSL_GUARDED_BY(mutex_);
  // Inputs of jobs that are not done.
  std::map<std::string, KeptPin> pins_ ABSL_GUARDED_BY(mutex_);
  // Of the care thread.
  std::map<std::string, absl::Time> unknown_;
  // A moving average.
  absl::Duration job_time_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  // When each client was served last, by a counter.
  std::map<std::string, int64_t> served_ ABSL_GUARDED_BY(mutex_);
  int64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;

  absl::Mutex watch_mutex_;
  std::set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(watch_mutex_);

  std::vector<std::thread> threads_;
};

absl::StatusOr<Operation> JobServiceImpl::Submit(NewOperation request) {
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      return MakeError(Reason::kServerUnavailable,
                       "the server is shutting down; try another or later");
    }
  }
  LOWERD_ASSIGN_OR_RETURN(std::unique_ptr<blob::Pin> pin, blobs_.PinAll(request.inputs));
  // Asked before the transaction, which no blob store should hold up.
  bool stale = false;
  if (!request.bypass_cache) {
    std::optional<CachedAction> action;
    LOWERD_RETURN_IF_ERROR(database_.Read([&](soci::session& session) {
      action = OperationStore(session).FindAction(request.action_key);
      return absl::OkStatus();
    }));
    stale = action && !OutputsAreHere(*action);
  }
  Operation operation;
  const std::string new_job = NewId();
  bool enqueued = false;
  // Kept before anybody can see the job, as it may end before this call does.
  Keep(new_job, std::move(pin), /*queued=*/false);
  const absl::Status status = database_.Write([&](soci::session& session) -> absl::Status {
    OperationStore store(session);
    enqueued = false;
    if (!request.request_id.empty()) {
      if (auto earlier = store.FindByRequest(request.client, request.request_id)) {
        if (earlier->action_key != request.action_key) {
          return FieldError(
              "request_id",
              absl::StrCat("has been used for another request, which is ", earlier->name));
        }
        operation = *std::move(earlier);
        Complete(store, operation);
        return absl::OkStatus();
      }
    }
    operation = Operation();
    operation.name = absl::StrCat(kNamePrefix, NewId());
    operation.client = request.client;
    operation.request_id = request.request_id;
    operation.action_key = request.action_key;
    operation.inputs = request.inputs;
    operation.priority = request.priority;
    operation.bypass_cache = request.bypass_cache;
    operation.created = operation.updated = absl::Now();
    // One that is in flight would be stopped before this request's time is over.
    bool alone = false;
    if (!request.bypass_cache) {
      // The job first: one that ends just now shows up as its action.
      const auto in_flight = store.FindJob(request.action_key);
      alone = in_flight.has_value() && in_flight->timeout < request.timeout;
      if (in_flight && !alone) {
        const std::string& job = in_flight->id;
        operation.cached = true;
        store.RaisePriority(job, request.priority);
        const std::vector<std::string> siblings = store.OperationsOf(job);
        if (!siblings.empty()) {
          const Operation sibling = *store.Find(siblings.front());
          operation.progress = sibling.progress;
          operation.attempt = sibling.attempt;
          operation.started = sibling.started;
        }
        store.Insert(operation, job);
        Complete(store, operation);
        return absl::OkStatus();
      }
      if (auto action = store.FindAction(request.action_key)) {
        // One that came since was made just now.
        if (!stale) {
          cache_.Put(request.action_key, *action);
          operation.progress.state = State::kDone;
          operation.cached = true;
          operation.result = action->result;
          operation.outputs = action->outputs;
          operation.ended = operation.created;
          store.Insert(operation, "");
          return absl::OkStatus();
        }
        store.DeleteAction(request.action_key);
        cache_.Erase(request.action_key);
      }
    }
    const int queued = store.CountQueued();
    if (queued >= options_.max_queued) {
      absl::Status full =
          MakeError(Reason::kQueueFull,
                    absl::StrCat(queued, " jobs are waiting already; try again in a while"));
      SetRetryDelay(full, QueueFullDelay());
      return full;
    }
    // Only a long queue can hold so many of one client.
    const int own = queued < options_.max_queued_per_client ? 0 : store.CountQueued(request.client);
    if (own >= options_.max_queued_per_client) {
      absl::Status full = MakeError(
          Reason::kQueueFull,
          absl::StrCat(own, " jobs of this client are waiting already; try again in a while"));
      SetRetryDelay(full, QueueFullDelay());
      return full;
    }
    Job job;
    job.id = new_job;
    job.action_key = request.action_key;
    job.client = request.client;
    job.request = request.request;
    job.inputs = request.inputs;
    job.priority = request.priority;
    job.bypass_cache = request.bypass_cache || alone;
    job.timeout = request.timeout;
    store.InsertJob(job);
    store.Insert(operation, job.id);
    Complete(store, operation);
    enqueued = true;
    return absl::OkStatus();
  });
  {
    absl::MutexLock lock(&mutex_);
    const auto kept = pins_.find(new_job);
    if (status.ok() && enqueued) {
      work_ = true;
      if (kept != pins_.end()) kept->second.queued = true;
    } else if (kept != pins_.end()) {
      pins_.erase(kept);
    }
  }
  LOWERD_RETURN_IF_ERROR(status);
  return operation;
}

absl::Duration JobServiceImpl::QueueFullDelay() {
  absl::MutexLock lock(&mutex_);
  return std::clamp(job_time_ / std::max(options_.workers, 1), kMinRetry, kMaxRetry);
}

void JobServiceImpl::Complete(OperationStore& store, Operation& operation) {
  if (operation.done()) return;
  const std::string job = store.JobOf(operation.name);
  {
    absl::MutexLock lock(&mutex_);
    const auto found = running_.find(job);
    if (found != running_.end()) {
      operation.progress = found->second->progress;
      operation.attempt = found->second->job.attempt;
      if (!operation.started) operation.started = found->second->started;
      return;
    }
  }
  if (operation.progress.state == State::kQueued) operation.queue_position = store.Position(job);
}

absl::StatusOr<Operation> JobServiceImpl::Get(absl::string_view name) {
  std::optional<Operation> operation;
  absl::string_view action_key = name;
  const bool cached = absl::ConsumePrefix(&action_key, kCachedPrefix);
  if (cached) {
    if (const auto action = cache_.Find(action_key)) return CachedOperation(action_key, *action);
  }
  LOWERD_RETURN_IF_ERROR(database_.Read([&](soci::session& session) {
    OperationStore store(session);
    if (cached) {
      if (const auto action = store.FindAction(std::string(action_key))) {
        operation = CachedOperation(action_key, *action);
      }
      return absl::OkStatus();
    }
    operation = store.Find(std::string(name));
    if (operation) Complete(store, *operation);
    return absl::OkStatus();
  }));
  if (!operation) return NotFoundError("operation", name);
  return *std::move(operation);
}

absl::StatusOr<JobService::Page> JobServiceImpl::List(const Filter& filter, int page_size,
                                                      absl::string_view page_token) {
  page_size = page_size <= 0 ? kDefaultPage : std::min(page_size, kMaxPage);
  std::string time, name;
  if (!page_token.empty()) {
    const std::vector<std::string> parts = absl::StrSplit(page_token, absl::MaxSplits('.', 1));
    int64_t number;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &number)) {
      return FieldError("page_token", "is not one that this server gave");
    }
    time = parts[0];
    name = absl::StrCat(kNamePrefix, parts[1]);
  }
  Page out;
  // The filter looks at rows.
  if (filter.state) LOWERD_RETURN_IF_ERROR(FlushProgress());
  LOWERD_RETURN_IF_ERROR(database_.Read([&](soci::session& session) {
    OperationStore store(session);
    // One more than asked for tells whether there is another page.
    out.operations = store.List(filter, page_size + 1, time, name);
    for (Operation& operation : out.operations) Complete(store, operation);
    return absl::OkStatus();
  }));
  if (out.operations.size() > static_cast<size_t>(page_size)) {
    out.operations.resize(static_cast<size_t>(page_size));
    const Operation& last = out.operations.back();
    out.next_page_token = absl::StrCat(absl::ToUnixMicros(last.created), ".",
                                       absl::StripPrefix(last.name, kNamePrefix));
  }
  return out;
}

absl::Status JobServiceImpl::Cancel(absl::string_view name) {
  if (absl::StartsWith(name, kCachedPrefix)) return Get(name).status();
  std::string unwanted;
  LOWERD_RETURN_IF_ERROR(database_.Write([&](soci::session& session) -> absl::Status {
    OperationStore store(session);
    unwanted.clear();
    const std::string operation(name);
    if (!store.Find(operation)) return NotFoundError("operation", name);
    const std::string job = store.JobOf(operation);
    const std::optional<bool> running = store.LockJob(job);
    if (!store.End(operation, CancelledByCaller(name))) return absl::OkStatus();
    // The job goes on while another operation wants it.
    if (!running || !store.OperationsOf(job).empty()) return absl::OkStatus();
    unwanted = job;
    if (*running) {
      store.SetCancelled(job);
    } else {
      store.DeleteJob(job);
    }
    return absl::OkStatus();
  }));
  if (!unwanted.empty()) {
    absl::MutexLock lock(&mutex_);
    const auto found = running_.find(unwanted);
    if (found != running_.end()) {
      found->second->cancellation.Cancel();
    } else {
      pins_.erase(unwanted);
    }
  }
  Notify({std::string(name)});
  return absl::OkStatus();
}

absl::Status JobServiceImpl::Delete(absl::string_view name) {
  // There is no row to delete; the action serves others.
  if (absl::StartsWith(name, kCachedPrefix)) return Get(name).status();
  LOWERD_RETURN_IF_ERROR(database_.Write([&](soci::session& session) -> absl::Status {
    OperationStore store(session);
    const auto operation = store.Find(std::string(name));
    if (!operation) return NotFoundError("operation", name);
    if (!operation->done()) {
      return MakeError(Reason::kOperationState,
                       absl::StrCat(name, " is not done; cancel it first"));
    }
    store.Delete(std::string(name));
    return absl::OkStatus();
  }));
  Notify({std::string(name)});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobService::Watch>> JobServiceImpl::WatchOperation(
    absl::string_view name, std::function<void(const absl::StatusOr<Operation>&)> on_change) {
  auto watcher = std::make_shared<Watcher>();
  watcher->name = std::string(name);
  watcher->on_change = std::move(on_change);
  LOWERD_RETURN_IF_ERROR(Get(name).status());
  auto handle = std::make_unique<WatchHandle>(*this, watcher);
  {
    absl::MutexLock lock(&watch_mutex_);
    watchers_.insert(watcher);
  }
  Call(*watcher);
  return handle;
}

void JobServiceImpl::Call(Watcher& watcher) {
  absl::MutexLock lock(&watcher.calling);
  if (watcher.ended) return;
  const absl::StatusOr<Operation> operation = Get(watcher.name);
  watcher.ended = !operation.ok() || operation->done();
  watcher.on_change(operation);
}

void JobServiceImpl::Notify(const std::vector<std::string>& names) {
  std::vector<std::shared_ptr<Watcher>> interested;
  {
    absl::MutexLock lock(&watch_mutex_);
    for (const std::shared_ptr<Watcher>& watcher : watchers_) {
      if (std::find(names.begin(), names.end(), watcher->name) != names.end()) {
        interested.push_back(watcher);
      }
    }
  }
  for (const std::shared_ptr<Watcher>& watcher : interested) Call(*watcher);
}

JobService::Stats JobServiceImpl::GetStats() const {
  Stats out;
  {
    absl::MutexLock lock(&mutex_);
    out.running = static_cast<int>(running_.size());
  }
  out.cache_hits = hits_;
  out.cache_misses = misses_;
  // A statistic that cannot be read is 0.
  (void)database_.Read([&](soci::session& session) {
    out.queued = OperationStore(session).CountQueued();
    return absl::OkStatus();
  });
  return out;
}

// ---- running

absl::StatusOr<std::optional<Job>> JobServiceImpl::ClaimNext() {
  std::optional<Job> claimed;
  const absl::Status status = database_.Write([&](soci::session& session) {
    OperationStore store(session);
    claimed.reset();
    std::vector<std::string> clients = store.WaitingClients();
    {
      // Who was served longest ago comes first.
      absl::MutexLock lock(&mutex_);
      std::stable_sort(
          clients.begin(), clients.end(),
          [this](const std::string& a, const std::string& b)
              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return served_[a] < served_[b]; });
    }
    for (const std::string& client : clients) {
      claimed = store.Claim(client, options_.replica, absl::Now() + options_.lease);
      if (claimed) break;
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  if (claimed) {
    absl::MutexLock lock(&mutex_);
    // Forgetting costs one turn.
    if (served_.size() >= kMaxServed) served_.clear();
    served_[claimed->client] = ++turn_;
  }
  return claimed;
}

void JobServiceImpl::RunLoop() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](JobServiceImpl* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
            return self->stopping_ || (self->work_ && !self->draining_);
          },
          this));
      if (stopping_) return;
      work_ = false;
    }
    const absl::StatusOr<std::optional<Job>> job = ClaimNext();
    if (!job.ok()) {
      // The store is full or away: look again in a while, as nobody else will say so.
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.poll);
      work_ = true;
      continue;
    }
    if (!job->has_value()) continue;
    // There may be more for the other threads.
    WakeRunners();
    RunOne(**job);
    WakeRunners();
  }
}

void JobServiceImpl::RunOne(const Job& job) {
  auto running = std::make_shared<Running>(job);
  running->progress.state = State::kLoading;
  {
    absl::MutexLock lock(&mutex_);
    running_[job.id] = running;
    if (draining_) running->cancellation.Cancel();
  }
  absl::StatusOr<JobResult> result = absl::UnknownError("not run");
  if (job.attempt > kMaxAttempts) {
    result = MakeError(Reason::kWorkerCrashed, absl::StrCat("the server went down ", kMaxAttempts,
                                                            " times during this job"));
  } else {
    NotifyOperationsOf(job.id);
    Operation operation;
    operation.name = absl::StrCat(kNamePrefix, job.id);
    (void)database_.Read([&](soci::session& session) {
      OperationStore store(session);
      const std::vector<std::string> names = store.OperationsOf(job.id);
      if (names.empty()) return absl::OkStatus();
      operation.name = names.front();
      if (const auto first = store.Find(names.front())) operation.created = first->created;
      return absl::OkStatus();
    });
    operation.client = job.client;
    operation.action_key = job.action_key;
    operation.request = job.request;
    operation.inputs = job.inputs;
    operation.priority = job.priority;
    operation.bypass_cache = job.bypass_cache;
    operation.attempt = job.attempt;
    operation.progress = running->progress;
    result = runner_.Run(operation, running->cancellation,
                         [&](const Progress& progress) { OnProgress(*running, progress); });
  }
  EndJob(running, result);
}

void JobServiceImpl::OnProgress(Running& running, const Progress& progress) {
  {
    absl::MutexLock lock(&mutex_);
    running.progress = progress;
    running.changed = true;
  }
  NotifyOperationsOf(running.job.id);
}

void JobServiceImpl::NotifyOperationsOf(const std::string& job) {
  {
    absl::MutexLock lock(&watch_mutex_);
    if (watchers_.empty()) return;
  }
  std::vector<std::string> names;
  (void)database_.Read([&](soci::session& session) {
    names = OperationStore(session).OperationsOf(job);
    return absl::OkStatus();
  });
  Notify(names);
}

void JobServiceImpl::EndJob(const std::shared_ptr<Running>& running,
                            const absl::StatusOr<JobResult>& result) {
  const Job& job = running->job;
  Progress progress;
  bool drained;
  {
    absl::MutexLock lock(&mutex_);
    drained = draining_ && running->cancellation.cancelled();
    progress = running->progress;
    job_time_ = (job_time_ * 7 + (absl::Now() - running->started)) / 8;
  }
  const bool give_back = !result.ok() && (HasReason(result.status(), Reason::kServerUnavailable) ||
                                          (drained && absl::IsCancelled(result.status())));
  if (result.ok() && result->cacheable) {
    cache_.Put(job.action_key, {result->result, result->outputs});
  }
  std::vector<std::string> names;
  const auto end = [&](soci::session& session) {
    OperationStore store(session);
    names.clear();
    // Another replica has the job since its lease ran out, and ends it.
    if (!store.LockClaimed(job)) return absl::OkStatus();
    if (give_back) {
      store.GiveBack(job);
      return absl::OkStatus();
    }
    store.SetProgress(job, progress);
    if (result.ok()) {
      names = store.EndAll(job.id, absl::OkStatus(), result->result, result->outputs);
      if (result->cacheable) store.PutAction(job.action_key, {result->result, result->outputs});
    } else {
      names = store.EndAll(job.id, WithReason(result.status()), "", {});
    }
    store.DeleteJob(job.id);
    return absl::OkStatus();
  };
  absl::Status status = database_.Write(end);
  // A full disk or a database that is away must not cost the work: the job stays ours until its
  // end is written, or until the server goes down and the next one does it again.
  while (!status.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&draining_), options_.poll);
      if (draining_) break;
    }
    status = database_.Write(end);
  }
  {
    absl::MutexLock lock(&mutex_);
    running_.erase(job.id);
    if (!give_back) pins_.erase(job.id);
  }
  Notify(names);
}

// ---- care

absl::Status JobServiceImpl::FlushProgress() {
  std::vector<std::pair<Job, Progress>> changed;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [id, running] : running_) {
      if (!running->changed) continue;
      running->changed = false;
      changed.emplace_back(running->job, running->progress);
    }
  }
  if (changed.empty()) return absl::OkStatus();
  return database_.Write([&](soci::session& session) {
    OperationStore store(session);
    for (const auto& [job, progress] : changed) {
      if (store.LockClaimed(job)) store.SetProgress(job, progress);
    }
    return absl::OkStatus();
  });
}

void JobServiceImpl::StopUnwanted() {
  std::vector<std::shared_ptr<Running>> running;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, job] : running_) running.push_back(job);
  }
  std::vector<std::string> wanted;
  const absl::Status status = database_.Read([&](soci::session& session) {
    wanted = OperationStore(session).WantedJobs(options_.replica);
    return absl::OkStatus();
  });
  if (!status.ok()) return;
  std::set<std::string> keep(wanted.begin(), wanted.end());
  for (const std::shared_ptr<Running>& job : running) {
    if (keep.erase(job->job.id) == 0) job->cancellation.Cancel();
  }
  // What runs here by the store's account only: a claim whose commit was not acknowledged. One that
  // is just being claimed is so for a moment.
  std::map<std::string, absl::Time> unknown;
  std::vector<std::string> lost;
  for (const std::string& job : keep) {
    const auto before = unknown_.find(job);
    const absl::Time since = before == unknown_.end() ? absl::Now() : before->second;
    unknown.emplace(job, since);
    if (absl::Now() - since > options_.lease / 3) lost.push_back(job);
  }
  unknown_ = std::move(unknown);
  if (lost.empty()) return;
  (void)database_.Write([&](soci::session& session) {
    OperationStore store(session);
    for (const std::string& job : lost) store.RequeueOf(options_.replica, job);
    return absl::OkStatus();
  });
  WakeRunners();
}

void JobServiceImpl::DropPins() {
  std::vector<std::string> kept;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [job, pin] : pins_) {
      if (pin.queued) kept.push_back(job);
    }
  }
  if (kept.empty()) return;
  std::vector<std::string> all;
  const absl::Status status = database_.Read([&](soci::session& session) {
    all = OperationStore(session).AllJobs();
    return absl::OkStatus();
  });
  if (!status.ok()) return;
  const std::set<std::string> jobs(all.begin(), all.end());
  absl::MutexLock lock(&mutex_);
  for (const std::string& job : kept) {
    if (jobs.count(job) == 0) pins_.erase(job);
  }
}

void JobServiceImpl::CareLoop() {
  absl::Time next_renewal = absl::Now();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.poll);
      if (stopping_) return;
    }
    // What fails here is tried again in the next round.
    (void)FlushProgress();
    StopUnwanted();
    if (shared()) {
      // Others may have queued and ended things.
      WakeRunners();
      std::vector<std::shared_ptr<Watcher>> watchers;
      {
        absl::MutexLock lock(&watch_mutex_);
        watchers.assign(watchers_.begin(), watchers_.end());
      }
      for (const std::shared_ptr<Watcher>& watcher : watchers) {
        const auto operation = Get(watcher->name);
        bool changed;
        {
          absl::MutexLock lock(&watcher->calling);
          changed = !operation.ok() || operation->updated != watcher->seen;
          if (operation.ok()) watcher->seen = operation->updated;
        }
        if (changed) Call(*watcher);
      }
    }
    if (absl::Now() < next_renewal) continue;
    next_renewal = absl::Now() + options_.lease / 3;
    int requeued = 0;
    (void)database_.Write([&](soci::session& session) {
      OperationStore store(session);
      const absl::Time now = absl::Now();
      store.Renew(options_.replica, now + options_.lease);
      requeued = store.RequeueExpired(now);
      store.DeleteEndedBefore(now - options_.retention);
      store.DeleteActionsBefore(now - options_.action_retention);
      return absl::OkStatus();
    });
    if (requeued > 0) WakeRunners();
    DropPins();
  }
}

void JobServiceImpl::Drain(absl::Duration grace) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_.empty(); };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&idle), grace)) {
    for (auto& [job, running] : running_) running->cancellation.Cancel();
    mutex_.Await(absl::Condition(&idle));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobService>> JobService::Create(Options options,
                                                               state::Database& database,
                                                               blob::BlobStore& blobs,
                                                               JobRunner& runner) {
  auto service = std::make_unique<JobServiceImpl>(std::move(options), database, blobs, runner);
  LOWERD_RETURN_IF_ERROR(service->Init());
  return service;
}

}  // namespace lowerd::jobs
