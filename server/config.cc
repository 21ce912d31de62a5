#include "server/config.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <CLI/CLI.hpp>

#include "server/credentials.h"
#include "src/base/error.h"
#include "src/base/version.h"
#include "src/rpc/address.h"
#include "src/state/database.h"

namespace lowerd::server {
namespace {

namespace fs = std::filesystem;

// Renewals come three times a lease, and machines stall.
constexpr absl::Duration kMinLease = absl::Seconds(1);
constexpr char kReferenceLibrary[] = "liblowerd_backend_reference.so";

void AddDuration(CLI::App& app, const std::string& flag, absl::Duration& value,
                 const std::string& help) {
  app.add_option_function<std::string>(
         flag,
         [&value, flag](const std::string& text) {
           absl::Duration parsed;
           if (!absl::ParseDuration(text, &parsed) || parsed < absl::ZeroDuration()) {
             throw CLI::ValidationError(flag, "\"" + text + "\" is not a duration like 60s or 1h");
           }
           value = parsed;
         },
         help)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(value));
}

void AddSize(CLI::App& app, const std::string& flag, int64_t& value, const std::string& help) {
  app.add_option(flag, value, help)->transform(CLI::AsSizeValue(false))->type_name("SIZE");
}

fs::path OwnFolder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : self.parent_path();
}

// The first of these that exists; empty if none.
fs::path FirstExisting(std::initializer_list<fs::path> paths) {
  for (const fs::path& path : paths) {
    std::error_code error;
    if (fs::exists(path, error)) return path;
  }
  return {};
}

absl::Status CheckHttp(const Config& config) {
  if (config.http.empty()) return absl::OkStatus();
  if (absl::StartsWith(config.http, "unix")) return FieldError("--http", "needs HOST:PORT");
  if (const absl::Status status = rpc::CheckListenAddress(config.http); !status.ok()) {
    return FieldError("--http", status.message());
  }
  if (rpc::IsLoopback(config.http) || config.allow_insecure) return absl::OkStatus();
  if (!HttpHasTls(config)) {
    return FieldError("--http", absl::StrCat("refusing to serve ", config.http,
                                             " without TLS; set --tls-cert and --tls-key, or say "
                                             "--allow-insecure"));
  }
  // It knows no tokens, and must not show to everybody what they keep.
  if (!config.token_file.empty() && config.tls_client_ca.empty()) {
    return FieldError("--http", absl::StrCat("refusing to serve ", config.http,
                                             " to callers without a token; set --tls-client-ca, or "
                                             "serve on loopback"));
  }
  return absl::OkStatus();
}

absl::Status CheckReadable(const std::string& flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return FieldError(flag, absl::StrCat("there is no file ", path));
  }
  return absl::OkStatus();
}

// The reference backend comes with lowerd; named explicitly it is not loaded twice.
void AddReferenceBackend(Config& config) {
  for (const std::string& library : config.backend_libraries) {
    if (fs::path(library).filename() == kReferenceLibrary) return;
  }
  const fs::path own = OwnFolder();
  const fs::path found = FirstExisting({own / kReferenceLibrary, own / "../lib" / kReferenceLibrary,
                                        own / "../lib/lowerd" / kReferenceLibrary});
  if (found.empty()) return;
  config.backend_libraries.insert(config.backend_libraries.begin(),
                                  fs::weakly_canonical(found).string());
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv) {
  CommandLine out;
  Config& config = out.config;
  config.workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));

  CLI::App app("lowerd: lowers PyTorch models for devices, as a gRPC service", "lowerd");
  app.footer(
      "Example:\n"
      "  lowerd --data-dir /var/lib/lowerd --backend-lib /opt/acme/libacme_backend.so\n");
  app.set_version_flag("--version", std::string("lowerd ") + kVersion);
  app.set_config("--config", "", "Read flags from this file (TOML: one \"flag = value\" per line)");
  // A misspelt "tls-client-ca" must not turn client certificates off.
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_flag("--check-config", out.check, "Check flags and files, then exit");

  app.add_option("--listen", config.listen, "HOST:PORT or unix:PATH to serve on; port 0 picks one")
      ->capture_default_str()
      ->group("Network");
  app.add_option("--address-file", config.address_file,
                 "Write the bound HOST:PORT here once serving")
      ->group("Network");
  app.add_option("--http", config.http,
                 "HOST:PORT for /metrics, /healthz, /readyz and the status page; default: off. "
                 "Plain HTTP on loopback, with --tls-cert HTTPS elsewhere")
      ->group("Network");
  app.add_flag("--allow-insecure", config.allow_insecure, "Serve beyond loopback without TLS")
      ->group("Network");
  AddDuration(app, "--stall-timeout", config.stall_timeout,
              "Cut off blob streams whose client neither sends nor takes anything for so long");
  app.add_option("--max-streams-per-client", config.max_streams_per_client,
                 "Uploads and downloads of one client at once; more are refused")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000))
      ->group("Network");
  app.add_option("--tls-cert", config.tls_cert,
                 "Server certificate chain (PEM), reloaded on change")
      ->group("Network");
  app.add_option("--tls-key", config.tls_key, "Server private key (PEM), reloaded on change")
      ->group("Network");
  app.add_option("--tls-client-ca", config.tls_client_ca,
                 "Require client certificates signed by this CA (PEM), reloaded on change")
      ->group("Network");
  app.add_option("--token-file", config.token_file,
                 "Let in clients with these bearer tokens (lines of NAME EXPIRES sha256:HEX), "
                 "reloaded on change")
      ->group("Network");
  app.add_option("--policy", config.policy,
                 "Who may call what: a gRPC authorization policy (JSON), reloaded on change")
      ->group("Network");
  app.add_option("--data-dir", config.data_dir, "State and blobs; created if it is not there")
      ->group("Storage");
  app.add_option("--state", config.state,
                 "sqlite:FILE or postgresql://...; default: SQLite in the data directory")
      ->group("Storage");
  app.add_option("--blobs", config.blobs,
                 "Blob store: a directory (default: in the data directory), or a REAPI CAS as "
                 "grpc://HOST:PORT[/INSTANCE] or grpcs://...; the data directory caches it")
      ->group("Storage");
  app.add_option("--blobs-tls-ca", config.blobs_tls_ca,
                 "For grpcs: trust this CA (PEM); default: the system's")
      ->group("Storage");
  app.add_option("--blobs-tls-cert", config.blobs_tls_cert, "For grpcs: client certificate (PEM)")
      ->group("Storage");
  app.add_option("--blobs-tls-key", config.blobs_tls_key, "For grpcs: client key (PEM)")
      ->group("Storage");
  app.add_option("--blobs-token-file", config.blobs_token_file,
                 "For grpcs: file with a bearer token")
      ->group("Storage");
  AddSize(app, "--blob-limit", config.blob_limit_bytes,
          "Evict least recently used blobs above this (e.g. 200GiB); 0: no limit");
  AddSize(app, "--max-blob", config.max_blob_bytes, "Largest blob that is accepted");
  app.add_flag("--fsync,!--no-fsync", config.fsync,
               "Make blobs durable before they are acknowledged (default: yes)")
      ->group("Storage");
  AddDuration(app, "--lease", config.lease,
              "How long a replica may be silent before another takes over its jobs");
  AddDuration(app, "--retention", config.retention, "How long finished operations stay readable");

  app.add_option("--workers", config.workers, "Jobs at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->group("Jobs");
  app.add_option("--worker-program", config.worker_program,
                 "lowerd-worker; default: next to lowerd")
      ->group("Jobs");
  app.add_option("--backend-lib", config.backend_libraries,
                 "Library that registers delegate backends; repeatable")
      ->allow_extra_args(false)
      ->group("Jobs");
  app.add_option("--op-lib", config.operator_libraries,
                 "Library that registers custom operators or classes; repeatable")
      ->allow_extra_args(false)
      ->group("Jobs");
  app.add_flag("--require-sandbox,!--no-require-sandbox", config.require_sandbox,
               "Refuse to start where jobs cannot be fully sandboxed (default: yes)")
      ->group("Jobs");
  AddSize(app, "--job-memory", config.job_memory_bytes,
          "Memory limit of one job; 0: what the machine has for jobs");
  AddDuration(app, "--job-timeout", config.job_timeout, "Time limit of a job that asks for none");
  AddDuration(app, "--max-job-timeout", config.max_job_timeout, "Largest time a job may ask for");
  app.add_option("--max-queued", config.max_queued, "Waiting jobs above which requests are refused")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000))
      ->group("Jobs");
  app.add_option("--max-queued-per-client", config.max_queued_per_client,
                 "Waiting jobs of one client above which its requests are refused")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000))
      ->group("Jobs");
  AddDuration(app, "--drain-grace", config.drain_grace,
              "How long SIGTERM lets running jobs and uploads go on");

  app.add_option("--log-level", config.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->group("Logging");
  app.add_option("--log-format", config.log_format, "text, or json for one JSON object a line")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LogFormat>{{"text", LogFormat::kText}, {"json", LogFormat::kJson}}))
      ->default_str("text")
      ->type_name("FORMAT")
      ->group("Logging");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version.
    if (error.get_exit_code() == 0) {
      app.exit(error, std::cout, std::cerr);
      return absl::CancelledError();
    }
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see lowerd --help)"));
  }
  return out;
}

absl::Status Complete(Config& config) {
  if (const absl::Status status = rpc::CheckListenAddress(config.listen); !status.ok()) {
    return FieldError("--listen", status.message());
  }
  if (!config.state.empty()) {
    const absl::Status status = state::Database::CheckLocation(config.state);
    if (!status.ok()) return FieldError("--state", status.message());
  }
  for (const auto& [flag, size] : {std::pair("--blob-limit", config.blob_limit_bytes),
                                   {"--max-blob", config.max_blob_bytes},
                                   {"--job-memory", config.job_memory_bytes}}) {
    if (size < 0) return FieldError(flag, "is negative");
  }
  for (const auto& [flag, duration] : {std::pair("--job-timeout", config.job_timeout),
                                       {"--max-job-timeout", config.max_job_timeout},
                                       {"--retention", config.retention},
                                       {"--stall-timeout", config.stall_timeout}}) {
    if (duration <= absl::ZeroDuration()) return FieldError(flag, "is not positive");
  }
  const bool tls = !config.tls_cert.empty() || !config.tls_key.empty();
  if (tls && (config.tls_cert.empty() || config.tls_key.empty())) {
    return FieldError("--tls-cert", "a certificate needs its key, and a key its certificate");
  }
  if (!tls && !config.tls_client_ca.empty()) {
    return FieldError("--tls-client-ca", "client certificates need --tls-cert and --tls-key");
  }
  if (!tls && !config.token_file.empty()) {
    return FieldError("--token-file", "tokens are only taken over TLS; set --tls-cert, --tls-key");
  }
  if (!tls && !config.policy.empty()) {
    return FieldError("--policy", "needs to know who calls; set --tls-cert and --tls-key");
  }
  if (!tls && !config.allow_insecure && !rpc::IsLoopback(config.listen)) {
    return FieldError("--listen", absl::StrCat("refusing to serve ", config.listen,
                                               " without TLS; set --tls-cert and --tls-key, or say "
                                               "--allow-insecure"));
  }
  LOWERD_RETURN_IF_ERROR(CheckHttp(config));
  LOWERD_RETURN_IF_ERROR(RemoteBlobs(config).status());
  if (config.lease < kMinLease) {
    return FieldError("--lease", absl::StrCat("is less than ", absl::FormatDuration(kMinLease)));
  }
  if (config.job_timeout > config.max_job_timeout) {
    return FieldError("--job-timeout", "is larger than --max-job-timeout");
  }
  if (config.data_dir.empty()) {
    const char* state_home = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    if (state_home != nullptr && *state_home != '\0') {
      config.data_dir = absl::StrCat(state_home, "/lowerd");
    } else if (home != nullptr && *home != '\0') {
      config.data_dir = absl::StrCat(home, "/.local/state/lowerd");
    } else {
      return FieldError("--data-dir", "is required where $HOME is not set");
    }
  }
  if (config.worker_program.empty()) {
    const fs::path own = OwnFolder();
    const fs::path found =
        FirstExisting({own / "lowerd-worker", own / "../libexec/lowerd/lowerd-worker"});
    if (found.empty()) {
      return FieldError("--worker-program",
                        absl::StrCat("there is no lowerd-worker in ", own.string()));
    }
    config.worker_program = fs::weakly_canonical(found).string();
  }
  AddReferenceBackend(config);
  LOWERD_RETURN_IF_ERROR(CheckReadable("--worker-program", config.worker_program));
  if (::access(config.worker_program.c_str(), X_OK) != 0) {
    return FieldError("--worker-program",
                      absl::StrCat(config.worker_program, " cannot be executed"));
  }
  for (const std::string& library : config.backend_libraries) {
    LOWERD_RETURN_IF_ERROR(CheckReadable("--backend-lib", library));
  }
  for (const std::string& library : config.operator_libraries) {
    LOWERD_RETURN_IF_ERROR(CheckReadable("--op-lib", library));
  }
  LOWERD_RETURN_IF_ERROR(CheckReadable("--tls-cert", config.tls_cert));
  LOWERD_RETURN_IF_ERROR(CheckReadable("--tls-key", config.tls_key));
  LOWERD_RETURN_IF_ERROR(CheckReadable("--tls-client-ca", config.tls_client_ca));
  LOWERD_RETURN_IF_ERROR(CheckCertificates(config));
  return Authorizer::Create({config.token_file, config.policy}).status();
}

bool HttpHasTls(const Config& config) {
  return !config.tls_cert.empty() && !rpc::IsLoopback(config.http);
}

absl::StatusOr<std::optional<client::ClientOptions>> RemoteBlobs(const Config& config) {
  const size_t scheme_end = config.blobs.find("://");
  if (scheme_end == std::string::npos) return std::nullopt;
  const std::string scheme = config.blobs.substr(0, scheme_end);
  if (scheme != "grpc" && scheme != "grpcs") {
    return FieldError("--blobs", absl::StrCat("\"", config.blobs,
                                              "\" is neither a directory nor grpc[s]://HOST:PORT"));
  }
  client::ClientOptions options;
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(config.blobs.substr(scheme_end + 3), absl::MaxSplits('/', 1));
  options.server = parts.first;
  options.instance_name = std::string(absl::StripSuffix(parts.second, "/"));
  if (options.server.empty() || options.server.find(':') == std::string::npos) {
    return FieldError("--blobs", absl::StrCat("\"", config.blobs, "\" has no HOST:PORT"));
  }
  const bool tls = scheme == "grpcs";
  if (!tls && !(config.blobs_tls_ca.empty() && config.blobs_tls_cert.empty() &&
                config.blobs_tls_key.empty() && config.blobs_token_file.empty())) {
    return FieldError("--blobs", "certificates and tokens need grpcs://");
  }
  if (!tls && !config.allow_insecure && !rpc::IsLoopback(options.server)) {
    return FieldError("--blobs", absl::StrCat("refusing to reach ", options.server,
                                              " without TLS; use grpcs://, or say "
                                              "--allow-insecure"));
  }
  options.tls = tls;
  options.insecure = !tls;
  options.tls_ca_file = config.blobs_tls_ca;
  options.tls_cert_file = config.blobs_tls_cert;
  options.tls_key_file = config.blobs_tls_key;
  options.token_file = config.blobs_token_file;
  return options;
}

}  // namespace lowerd::server
