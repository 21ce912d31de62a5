#include "server/server.h"

#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "server/byte_stream_service.h"
#include "server/call_log.h"
#include "server/call_observer.h"
#include "server/cas_service.h"
#include "server/credentials.h"
#include "server/health.h"
#include "server/http_endpoints.h"
#include "server/http_server.h"
#include "server/lowering_service.h"
#include "server/metrics.h"
#include "server/metrics_source.h"
#include "server/model_jobs.h"
#include "server/observed_runner.h"
#include "server/operation_traces.h"
#include "server/operations_service.h"
#include "server/remote_blob_store.h"
#include "server/status_page.h"
#include "server/type_names_service.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/base/thread_pool.h"
#include "src/blob/disk_blob_store.h"
#include "src/jobs/job_service.h"
#include "src/names/sql_type_name_registry.h"
#include "src/pool/worker_pool.h"
#include "src/state/database.h"

namespace lowerd::server {
namespace {

// Threads for calls that touch the state store and for blob streams. They wait for the disk, not
// the CPU.
constexpr int kStateThreads = 16;
constexpr int kBlobThreads = 16;
// Operations whose trace is remembered until their job ends.
constexpr size_t kTraces = 10'000;
// Messages above what batches and ByteStream chunks need are refused.
constexpr int kMaxReceiveBytes = 8 << 20;
// Headers of one call together: a token, a trace, who asks.
constexpr int kMaxMetadataBytes = 16 << 10;
// Farm clients ping more often than gRPC's default of five minutes allows.
constexpr int kMinPingIntervalMs = 10'000;
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// Connections without calls; clients connect again by themselves.
constexpr int kMaxIdleMs = 30 * 60'000;
// Of one connection; more wait at the client.
constexpr int kMaxStreams = 1000;

absl::Status WriteAddressFile(const std::string& path, const std::string& address) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = absl::StrCat(path, ".", ::getpid());
  {
    std::ofstream file(temporary);
    file << address << "\n";
    if (!file.flush())
      return FieldError("--address-file", absl::StrCat(path, " cannot be written"));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return FieldError("--address-file", absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

// gRPC removes a socket file that is in its way, also one that a living server listens on.
bool IsTaken(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof address.sun_path) return false;
  unix_path.copy(address.sun_path, unix_path.size());
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::string ReplicaName() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return absl::StrCat(host, ":", ::getpid(), ":", absl::ToUnixMicros(absl::Now()));
}

class ServerImpl final : public Server {
 public:
  ~ServerImpl() override { Drain(absl::ZeroDuration()); }

  absl::Status Init(const Config& config) {
    std::error_code error;
    std::filesystem::create_directories(config.data_dir, error);
    if (error) {
      return FieldError("--data-dir", absl::StrCat(config.data_dir, ": ", error.message()));
    }
    LOWERD_ASSIGN_OR_RETURN(
        database_, state::Database::Open(config.state.empty()
                                             ? absl::StrCat("sqlite:", config.data_dir, "/state.db")
                                             : config.state));
    LOWERD_RETURN_IF_ERROR(OpenBlobs(config));
    registry_ = names::MakeSqlTypeNameRegistry(*database_);

    pool::WorkerPool::Options pool_options;
    pool_options.worker_program = config.worker_program;
    pool_options.backend_libraries = config.backend_libraries;
    pool_options.operator_libraries = config.operator_libraries;
    pool_options.workers = config.workers;
    pool_options.memory_limit_bytes = config.job_memory_bytes;
    pool_options.require_sandbox = config.require_sandbox;
    LOWERD_ASSIGN_OR_RETURN(workers_, pool::WorkerPool::Create(pool_options));
    LogToolchain();

    models_ = std::make_unique<ModelJobs>(
        *workers_, *blobs_, *registry_, RequestLimits{config.job_timeout, config.max_job_timeout});
    jobs::JobService::Options job_options;
    job_options.workers = config.workers;
    job_options.max_queued = config.max_queued;
    job_options.max_queued_per_client = config.max_queued_per_client;
    job_options.retention = config.retention;
    job_options.lease = config.lease;
    job_options.replica = ReplicaName();
    runner_ = std::make_unique<ObservedRunner>(*models_, metrics_, traces_);
    LOWERD_ASSIGN_OR_RETURN(jobs_,
                            jobs::JobService::Create(job_options, *database_, *blobs_, *runner_));
    health_ = std::make_unique<Health>(*jobs_, *workers_, *blobs_);
    model_threads_ = std::make_unique<ThreadPool>(config.workers);
    LOWERD_RETURN_IF_ERROR(Serve(config));
    LOWERD_RETURN_IF_ERROR(ServeHttp(config));
    return WriteAddressFile(config.address_file, address_);
  }

  const std::string& address() const override { return address_; }
  const std::string& http_url() const override { return http_url_; }
  absl::Status Live() const override { return health_->Live(); }

  void Reload() override {
    if (certificates_ != nullptr) certificates_->Reload();
    authorizer_->Reload();
  }

  void Drain(absl::Duration grace) override {
    if (drained_) return;
    drained_ = true;
    const absl::Time end = absl::Now() + grace;
    if (server_ != nullptr) {
      server_->GetHealthCheckService()->SetServingStatus(false);
      health_->SetDraining();
      // Running jobs first, so that those who watch them hear of their end.
      jobs_->Drain(grace);
      server_->Shutdown(absl::ToChronoTime(std::max(end, absl::Now() + absl::Milliseconds(200))));
      server_->Wait();
    }
    if (workers_ != nullptr) workers_->Shutdown();
  }

 private:
  absl::Status OpenBlobs(const Config& config) {
    blob::DiskBlobStore::Options options;
    options.limit_bytes = config.blob_limit_bytes;
    options.max_blob_bytes = config.max_blob_bytes;
    LOWERD_ASSIGN_OR_RETURN(const auto remote, RemoteBlobs(config));
    if (remote) {
      options.directory = absl::StrCat(config.data_dir, "/blob-cache");
      // What it loses is fetched again.
      options.fsync = false;
      LOWERD_ASSIGN_OR_RETURN(blobs_, RemoteBlobStore::Create({*remote, options}));
      return absl::OkStatus();
    }
    options.directory =
        config.blobs.empty() ? absl::StrCat(config.data_dir, "/blobs") : config.blobs;
    options.fsync = config.fsync;
    LOWERD_ASSIGN_OR_RETURN(auto disk, blob::DiskBlobStore::Create(options));
    if (disk->quarantined() > 0) {
      spdlog::warn("{} files in the blob store were no blobs; they are in {}/quarantine",
                   disk->quarantined(), options.directory);
    }
    blobs_ = std::move(disk);
    return absl::OkStatus();
  }

  void LogToolchain() const {
    const internal::FromZygote::Ready& ready = workers_->toolchain();
    std::vector<std::string> backends;
    for (const v1::Backend& backend : ready.backends()) backends.push_back(backend.name());
    spdlog::info("libtorch {}, backends: {}", ready.producer().libtorch_version(),
                 absl::StrJoin(backends, ", "));
    spdlog::info("sandbox in force: {}", absl::StrJoin(ready.sandbox_layers(), ", "));
    if (!ready.sandbox_missing().empty()) {
      spdlog::warn("sandbox missing: {}", absl::StrJoin(ready.sandbox_missing(), "; "));
    }
  }

  absl::Status Serve(const Config& config) {
    if (!config.tls_cert.empty()) {
      LOWERD_ASSIGN_OR_RETURN(certificates_,
                              CertificateMirror::Create(config, config.data_dir + "/tls"));
    }
    LOWERD_ASSIGN_OR_RETURN(
        authorizer_,
        Authorizer::Create({config.token_file, config.policy, [this](const absl::Status& status) {
                              metrics_.CountRefusal(ReasonOf(status));
                            }}));
    byte_stream_ = std::make_unique<ByteStreamService>(*blobs_, blob_threads_, config.stall_timeout,
                                                       config.max_streams_per_client);
    cas_ = std::make_unique<CasService>(*blobs_, blob_threads_);
    capabilities_ = std::make_unique<CapabilitiesService>(config.max_blob_bytes);
    lowering_ = std::make_unique<LoweringService>(*jobs_, *models_, *workers_, state_threads_,
                                                  *model_threads_);
    operations_ = std::make_unique<OperationsService>(*jobs_, state_threads_);
    type_names_ = std::make_unique<TypeNamesService>(*registry_, state_threads_);

    absl::string_view unix_path = config.listen;
    if (absl::ConsumePrefix(&unix_path, "unix:") && IsTaken(std::string(unix_path))) {
      return FieldError("--listen", absl::StrCat("another server listens on ", config.listen));
    }
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(
        config.listen, MakeServerCredentials(config, certificates_.get(), authorizer_), &port);
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    // A peer that is gone without a word is noticed; one that is there answers by itself, so that
    // no long upload is broken.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    // Two servers on one port would share its connections at random.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    const std::vector<grpc::Service*> services = {byte_stream_.get(),  cas_.get(),
                                                  capabilities_.get(), lowering_.get(),
                                                  operations_.get(),   type_names_.get()};
    for (grpc::Service* service : services) builder.RegisterService(service);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(MakeCallInterceptor(call_log_));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    const bool unix_socket = absl::StartsWith(config.listen, "unix:");
    if (server_ == nullptr || (port == 0 && !unix_socket)) {
      return FieldError("--listen",
                        absl::StrCat("cannot serve on ", config.listen,
                                     "; is the address this machine's, free, and allowed?"));
    }
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus(true);
    for (const char* name : {"google.bytestream.ByteStream", "google.longrunning.Operations",
                             "build.bazel.remote.execution.v2.ContentAddressableStorage",
                             "build.bazel.remote.execution.v2.Capabilities",
                             "lowerd.v1.LoweringService", "lowerd.v1.TypeNames"}) {
      health->SetServingStatus(name, true);
    }
    address_ = unix_socket
                   ? config.listen
                   : absl::StrCat(config.listen.substr(0, config.listen.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  absl::Status ServeHttp(const Config& config) {
    if (config.http.empty()) return absl::OkStatus();
    metrics_.AddSource(std::make_shared<MetricsSource>(
        *jobs_, *workers_, *blobs_,
        std::vector<const TransferCounts*>{&byte_stream_->transfers(), &cas_->transfers()}));
    page_ = std::make_unique<StatusPage>(*jobs_, *workers_, *blobs_, *registry_);
    endpoints_ = std::make_unique<HttpEndpoints>(metrics_, *health_, *page_);
    HttpServer::Options options;
    options.listen = config.http;
    if (HttpHasTls(config)) {
      options.tls_cert = certificates_->cert();
      options.tls_key = certificates_->key();
      options.tls_client_ca = certificates_->client_ca();
      options.open_paths = {kLivePath, kReadyPath};
    }
    options.handler = [this](const HttpRequest& request) { return endpoints_->Handle(request); };
    LOWERD_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(options)));
    http_url_ = absl::StrCat(HttpHasTls(config) ? "https://" : "http://", http_->address());
    return absl::OkStatus();
  }

  // In the order in which they depend on each other: what is below uses what is above.
  std::unique_ptr<state::Database> database_;
  std::unique_ptr<blob::BlobStore> blobs_;
  std::unique_ptr<names::TypeNameRegistry> registry_;
  std::unique_ptr<pool::WorkerPool> workers_;
  std::unique_ptr<ModelJobs> models_;
  Metrics metrics_;
  OperationTraces traces_{kTraces};
  CallLog call_log_{metrics_, traces_};
  std::unique_ptr<ObservedRunner> runner_;
  std::unique_ptr<jobs::JobService> jobs_;
  std::unique_ptr<Health> health_;
  std::unique_ptr<ByteStreamService> byte_stream_;
  std::unique_ptr<CasService> cas_;
  std::unique_ptr<CapabilitiesService> capabilities_;
  std::unique_ptr<LoweringService> lowering_;
  std::unique_ptr<OperationsService> operations_;
  std::unique_ptr<TypeNamesService> type_names_;
  // Finish their tasks before the services go.
  ThreadPool state_threads_{kStateThreads};
  ThreadPool blob_threads_{kBlobThreads};
  std::unique_ptr<ThreadPool> model_threads_;
  std::unique_ptr<CertificateMirror> certificates_;
  std::shared_ptr<Authorizer> authorizer_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<HttpEndpoints> endpoints_;
  std::unique_ptr<HttpServer> http_;
  std::string address_;
  std::string http_url_;
  bool drained_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config) {
  auto server = std::make_unique<ServerImpl>();
  LOWERD_RETURN_IF_ERROR(server->Init(config));
  return server;
}

}  // namespace lowerd::server
