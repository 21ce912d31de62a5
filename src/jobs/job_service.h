#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "src/blob/blob_store.h"
#include "src/jobs/job_runner.h"
#include "src/jobs/operation.h"

namespace lowerd::state {
class Database;
}

namespace lowerd::jobs {

// The one place that operations live: accepts, queues, coalesces, runs, remembers. Thread-safe.
// Durable: an operation that Submit returned survives kill -9 of any process. Calls may block on
// I/O, so gRPC reactors hand them to a thread, but for TryCached, which never blocks.
class JobService {
 public:
  struct Options {
    // Jobs at once in this process.
    int workers = 1;
    // Waiting jobs above which Submit says QUEUE_FULL.
    int max_queued = 1000;
    // The same for the waiting jobs of one client.
    int max_queued_per_client = 500;
    // How long finished operations stay readable.
    absl::Duration retention = absl::Hours(7 * 24);
    // How long the result of an action answers equal requests.
    absl::Duration action_retention = absl::Hours(90 * 24);
    // A lease that was not renewed for so long is taken over by another replica.
    absl::Duration lease = absl::Seconds(30);
    // How often progress is written, other replicas' changes are looked for, and what could not be
    // written is tried again.
    absl::Duration poll = absl::Milliseconds(500);
    // Unique to this process.
    std::string replica;
  };

  // `database`, `blobs` and `runner` must outlive the service. Starts the threads; re-queues what a
  // dead process of the same database left behind.
  static absl::StatusOr<std::unique_ptr<JobService>> Create(Options options,
                                                            state::Database& database,
                                                            blob::BlobStore& blobs,
                                                            JobRunner& runner);
  virtual ~JobService() = default;

  struct NewOperation {
    std::string client;
    std::string request_id;
    std::string action_key;
    std::string request;
    std::vector<Digest> inputs;
    int priority = 0;
    bool bypass_cache = false;
    // What the request lets its job take. It joins only jobs that may take as long.
    absl::Duration timeout = absl::ZeroDuration();
  };

  // A done operation from the in-memory cache, if there is one whose blobs are all here; its name
  // can be read later although no row was written. Never blocks; so always empty if the blob store
  // is not local, and Submit then answers from the durable cache.
  virtual std::optional<Operation> TryCached(absl::string_view action_key) = 0;

  // Makes the operation durable and queues it (or joins a job in flight, or finishes it from the
  // cache). The same (client, request_id) gives the same operation; INVALID_REQUEST if that was
  // asked for something else. QUEUE_FULL with RetryInfo;
  // BLOB_MISSING if an input is not here.
  virtual absl::StatusOr<Operation> Submit(NewOperation operation) = 0;

  virtual absl::StatusOr<Operation> Get(absl::string_view name) = 0;

  struct Filter {
    std::optional<State> state;
    std::optional<bool> done;
    std::optional<bool> failed;
  };
  struct Page {
    std::vector<Operation> operations;
    // Empty at the end.
    std::string next_page_token;
  };
  // Newest first. INVALID_REQUEST for a bad token.
  virtual absl::StatusOr<Page> List(const Filter& filter, int page_size,
                                    absl::string_view page_token) = 0;

  // Works in every state; the operation ends with OPERATION_CANCELLED. A shared job goes on while
  // another operation wants it.
  virtual absl::Status Cancel(absl::string_view name) = 0;
  // OPERATION_STATE if it is not done.
  virtual absl::Status Delete(absl::string_view name) = 0;

  // Calls `on_change` with the operation now and after each change, never two calls at once for one
  // watch, the last one with a done operation (or with an error if it was deleted). Called from
  // the service's threads; must not block. Dropping the handle ends it: no call comes after the
  // handle's destructor returns. RESOURCE_NOT_FOUND if there is no such operation.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  virtual absl::StatusOr<std::unique_ptr<Watch>> WatchOperation(
      absl::string_view name, std::function<void(const absl::StatusOr<Operation>&)> on_change) = 0;

  struct Stats {
    int queued = 0;
    int running = 0;
    int64_t cache_hits = 0;
    int64_t cache_misses = 0;
  };
  virtual Stats GetStats() const = 0;

  // Takes no more work; running jobs get `grace` to end and then go back to the queue. Idempotent;
  // the destructor drains with no grace.
  virtual void Drain(absl::Duration grace) = 0;
};

}  // namespace lowerd::jobs
