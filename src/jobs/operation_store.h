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

struct Job {
  std::string id;
  std::string action_key;
  std::string client;
  std::string request;
  std::vector<Digest> inputs;
  int priority = 0;
  bool bypass_cache = false;
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
  void SetProgress(const std::string& job, const Progress& progress, int attempt);
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
  std::optional<std::string> FindJob(const std::string& action_key);
  void InsertJob(const Job& job);
  void DeleteJob(const std::string& id);
  int CountQueued();
  // 1 for the first in the queue, by priority and age; 0 if the job is not queued.
  int Position(const std::string& job);
  // Clients that have jobs queued at the highest priority there is.
  std::vector<std::string> WaitingClients();
  // Takes the client's first job of that priority for `replica`, if another has not.
  std::optional<Job> Claim(const std::string& client, const std::string& replica, absl::Time lease);
  void Renew(const std::string& replica, absl::Time lease);
  // Back to the queue. Of one job, of all whose lease is over, of all.
  void Requeue(const std::string& id);
  int RequeueExpired(absl::Time now);
  int RequeueAll();
  void SetCancelled(const std::string& id);
  // Of this replica's running jobs.
  std::vector<std::string> CancelledJobs(const std::string& replica);
  // Queued jobs in their order.
  std::vector<Job> QueuedJobs();

  // ---- action cache
  std::optional<CachedAction> FindAction(const std::string& action_key);
  void PutAction(const std::string& action_key, const CachedAction& action);
  void DeleteAction(const std::string& action_key);

 private:
  soci::session& session_;
};

// Digests as they stand in a column.
std::string EncodeDigests(const std::vector<Digest>& digests);
std::vector<Digest> DecodeDigests(const std::string& text);

}  // namespace lowerd::jobs
