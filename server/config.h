#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/client_options.h"
#include "server/logging.h"

namespace lowerd::server {

// Everything an operator can set. Plain data; `lowerd --help` explains each.
struct Config {
  std::string listen = "127.0.0.1:50051";
  bool allow_insecure = false;
  absl::Duration stall_timeout = absl::Minutes(1);
  // Uploads and downloads of one client at once.
  int max_streams_per_client = 128;
  // When serving, the bound "host:port" is written here (atomically). For port 0.
  std::string address_file;

  // HOST:PORT of metrics, health and status page; empty: none. Beyond loopback it has TLS as the
  // listener has.
  std::string http;

  std::string data_dir;
  // Empty: SQLite in data_dir.
  std::string state;
  // A directory, or grpc[s]://host:port[/instance] of a REAPI CAS. Empty: data_dir/blobs.
  std::string blobs;
  // For grpcs: PEM files, as of a client.
  std::string blobs_tls_ca;
  std::string blobs_tls_cert;
  std::string blobs_tls_key;
  std::string blobs_token_file;
  // 0 is no limit.
  int64_t blob_limit_bytes = 0;
  int64_t max_blob_bytes = int64_t{64} << 30;
  bool fsync = true;

  int workers = 1;
  // Empty: next to lowerd, or in ../libexec/lowerd.
  std::string worker_program;
  std::vector<std::string> backend_libraries;
  std::vector<std::string> operator_libraries;
  bool require_sandbox = true;
  // Of one job, beyond what a warm worker has. 0 is what the machine has for jobs.
  int64_t job_memory_bytes = 0;
  absl::Duration job_timeout = absl::Seconds(60);
  absl::Duration max_job_timeout = absl::Minutes(30);
  int max_queued = 1000;
  // Of one client, so that others find room.
  int max_queued_per_client = 500;
  absl::Duration retention = absl::Hours(7 * 24);
  // See jobs::JobService::Options.
  absl::Duration lease = absl::Seconds(30);
  absl::Duration drain_grace = absl::Seconds(30);

  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // See TokenSet and Policy.
  std::string token_file;
  std::string policy;

  std::string log_level = "info";
  LogFormat log_format = LogFormat::kText;
};

// What the command line asks for.
struct CommandLine {
  Config config;
  // Only check the configuration.
  bool check = false;
};

// Parses flags and the file named by --config. CANCELLED if help or the version was asked for and
// has been printed; INVALID_ARGUMENT says what is wrong.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv);

// Fills in defaults that depend on the host (data directory, worker program, reference backend) and
// says what cannot work: a listener beyond loopback without TLS, files that are not there, limits
// that contradict each other.
absl::Status Complete(Config& config);

// Whether the HTTP listener has TLS: beyond loopback it must, where there is a certificate.
bool HttpHasTls(const Config& config);

// How to reach the blob store that `config.blobs` names; nothing if it is a directory.
// INVALID_REQUEST for one that cannot be.
absl::StatusOr<std::optional<client::ClientOptions>> RemoteBlobs(const Config& config);

}  // namespace lowerd::server
