#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "src/jobs/job_service.h"
#include "src/jobs/operation.h"

namespace soci {
class session;
}

namespace lowerd::jobs {

// The SQL of operations and jobs. All functions run inside a transaction of the caller's and throw
// soci::soci_error, which state::Database turns into a status.
//
// An operation is what a client asked for. A job is work; operations with equal action keys that
// are in flight point at one job. A job's row lives while the work is wanted and not done.
//
// Several replicas may work on one database. Whoever adds an operation to a job, ends it, or takes
// it away locks the job's row first, so that no operation can join a job that is just ending.

struct Job {
  std::string id;
  std::string action_key;
  std::string client;
  std::string request;
  std::vector<Digest> inputs;
  int priority = 0;
  // Nobody joins it.
  bool bypass_cache = false;
  absl::Duration timeout;
  // Who claimed it, and how often it has been claimed: together they tell this run of the job from
  // every other.
  std::string replica;
  int attempt = 0;
};

struct CachedAction {
  std::string result;
  std::vector<Digest> outputs;
};

class OperationStore {
 public:
  explicit OperationStore(soci::session& session) : session_(session) {}

  // ---- operations
  std::optional<Operation> Find(const std::string& name);
  std::optional<Operation> FindByRequest(const std::string& client, const std::string& request_id);
  void Insert(const Operation& operation, const std::string& job);
  std::vector<Operation> List(const JobService::Filter& filter, int limit,
                              const std::string& after_time, const std::string& after_name);
  // Of the operations of a job that the caller holds.
  void SetProgress(const Job& job, const Progress& progress);
  // Ends every operation of the job that has not ended; their names.
  std::vector<std::string> EndAll(const std::string& job, const absl::Status& error,
                                  const std::string& result, const std::vector<Digest>& outputs);
  // Ends one; false if it had ended.
  bool End(const std::string& name, const absl::Status& error);
  void Delete(const std::string& name);
  // Forgets operations that ended before `time`; their number.
  int DeleteEndedBefore(absl::Time time);
  std::string JobOf(const std::string& operation);
  std::vector<std::string> OperationsOf(const std::string& job);

  // ---- jobs
  struct InFlight {
    std::string id;
    absl::Duration timeout;
  };
  // The wanted job of that key, which cannot end before this transaction does.
  std::optional<InFlight> FindJob(const std::string& action_key);
  void InsertJob(const Job& job);
  // Lifts a queued job to `priority`, if that is higher than its own.
  void RaisePriority(const std::string& id, int priority);
  // Locks the row; whether the job is running, nothing if it is no more.
  std::optional<bool> LockJob(const std::string& id);
  // Locks the row; false if this run of the job is over (its lease ran out and another took it).
  bool LockClaimed(const Job& job);
  void DeleteJob(const std::string& id);
  int CountQueued();
  int CountQueued(const std::string& client);
  // 1 for the first in the queue, by priority and age; 0 if the job is not queued.
  int Position(const std::string& job);
  // Clients that have jobs queued at the highest priority there is.
  std::vector<std::string> WaitingClients();
  // Takes the client's first job of that priority for `replica`, if another has not; its operations
  // are LOADING then.
  std::optional<Job> Claim(const std::string& client, const std::string& replica, absl::Time lease);
  void Renew(const std::string& replica, absl::Time lease);
  // Puts a job back that the caller holds and gives up on purpose: that is no failed attempt. A job
  // that nobody wants any more goes instead.
  void GiveBack(const Job& job);
  // The same for running jobs whose lease ended before `time`; their attempt counts. Their number.
  int RequeueExpired(absl::Time time);
  // The same for one job that `replica` has claimed without knowing it.
  void RequeueOf(const std::string& replica, const std::string& id);
  void SetCancelled(const std::string& id);
  // Jobs that `replica` runs and should go on with.
  std::vector<std::string> WantedJobs(const std::string& replica);
  // All that are queued or running.
  std::vector<std::string> AllJobs();
  // Queued jobs in their order.
  std::vector<Job> QueuedJobs();

  // ---- action cache
  std::optional<CachedAction> FindAction(const std::string& action_key);
  void PutAction(const std::string& action_key, const CachedAction& action);
  void DeleteAction(const std::string& action_key);
  void DeleteActionsBefore(absl::Time time);

 private:
  void Unclaim(const std::string& id);
  const char* ForUpdate() const;

  soci::session& session_;
};

// Digests as they stand in a column.
std::string EncodeDigests(const std::vector<Digest>& digests);
std::vector<Digest> DecodeDigests(const std::string& text);

}  // namespace lowerd::jobs
