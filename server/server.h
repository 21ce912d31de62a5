#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/config.h"

namespace lowerd::server {

// A running lowerd: everything from the database to the listener. Thread-safe.
class Server {
 public:
  // Starts the worker pool, opens state and blobs and serves. `config` must be Complete. On error
  // nothing is left running.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config);
  // Shuts down without grace if Drain was not called.
  virtual ~Server() = default;

  // The bound "host:port" (or "unix:path").
  virtual const std::string& address() const = 0;

  // "http://host:port" of metrics and status page; empty without --http.
  virtual const std::string& http_url() const = 0;

  // An error if only a restart can help. Never blocks on I/O.
  virtual absl::Status Live() const = 0;

  // Looks at certificates, tokens and policy now; otherwise that happens every few seconds.
  virtual void Reload() = 0;

  // Health says NOT_SERVING first; then new calls are refused, running calls and jobs get `grace`,
  // and jobs that have not ended go back to the queue. Idempotent.
  virtual void Drain(absl::Duration grace) = 0;
};

}  // namespace lowerd::server
