#include "server/http_server.h"

#include <httplib.h>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

// A slow caller holds one of the threads, at most that long for each read.
constexpr int kThreads = 16;
constexpr int kReadSeconds = 2;
constexpr int kWriteSeconds = 5;
constexpr size_t kMaxRequestBytes = 64 << 10;

// Scripts, styles and fetches come from this server or not at all, and nobody frames its pages.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

// Gives each handshake what the files hold now, so that renewed certificates need no restart.
struct TlsFiles {
  std::string cert;
  std::string key;
  std::string client_ca;

  bool Load(SSL* ssl) const {
    if (SSL_use_certificate_chain_file(ssl, cert.c_str()) != 1 ||
        SSL_use_PrivateKey_file(ssl, key.c_str(), SSL_FILETYPE_PEM) != 1) {
      return false;
    }
    if (client_ca.empty()) return true;
    const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                        &X509_STORE_free);
    return X509_STORE_load_locations(store.get(), client_ca.c_str(), nullptr) == 1 &&
           SSL_set1_verify_cert_store(ssl, store.get()) == 1;
  }

  static int OnHandshake(SSL* ssl, void* self) {
    return static_cast<const TlsFiles*>(self)->Load(ssl) ? 1 : 0;
  }
};

void SetHeaders(httplib::Response& response) {
  response.set_header("Content-Security-Policy", kContentSecurityPolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
  response.set_header("Cache-Control", "no-store");
}

// Whether the caller showed a certificate. One that does not verify ends the handshake.
bool HasCertificate(const httplib::Request& request) {
  if (request.ssl == nullptr) return false;
  X509* certificate = SSL_get_peer_certificate(request.ssl);
  X509_free(certificate);
  return certificate != nullptr;
}

class HttpServerImpl final : public HttpServer {
 public:
  explicit HttpServerImpl(Options options)
      : options_(std::move(options)),
        tls_{options_.tls_cert, options_.tls_key, options_.tls_client_ca} {}

  ~HttpServerImpl() override {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
  }

  absl::Status Init() {
    LOWERD_RETURN_IF_ERROR(MakeServer());
    server_->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_->set_keep_alive_max_count(1);
    server_->set_read_timeout(kReadSeconds);
    server_->set_write_timeout(kWriteSeconds);
    server_->set_payload_max_length(kMaxRequestBytes);
    // httplib's default shares the port with other processes.
    server_->set_socket_options([](int socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    server_->set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          response.status = 500;
          response.set_content("internal error\n", "text/plain");
        });
    server_->Get(".*", [this](const httplib::Request& request, httplib::Response& response) {
      Answer(request, response);
    });
    LOWERD_RETURN_IF_ERROR(Bind());
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    // stop() does nothing before that, and httplib has nothing to wait on.
    while (!server_->is_running()) absl::SleepFor(absl::Milliseconds(1));
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

 private:
  absl::Status MakeServer() {
    if (options_.tls_cert.empty()) {
      server_ = std::make_unique<httplib::Server>();
      return absl::OkStatus();
    }
    server_ = std::make_unique<httplib::SSLServer>([this](SSL_CTX& context) {
      SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION);
      SSL_CTX_set_cert_cb(&context, &TlsFiles::OnHandshake, &tls_);
      if (!options_.tls_client_ca.empty()) {
        // Sessions would outlive the certificates they were made with.
        SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(&context, SSL_OP_NO_TICKET);
        SSL_CTX_set_verify(&context, SSL_VERIFY_PEER, nullptr);
      }
      // What is wrong with the files shows now, not at the first caller.
      const std::unique_ptr<SSL, decltype(&SSL_free)> trial(SSL_new(&context), &SSL_free);
      return trial != nullptr && tls_.Load(trial.get());
    });
    if (!server_->is_valid()) {
      return FieldError("--http",
                        absl::StrCat("the certificate ", options_.tls_cert, ", its key ",
                                     options_.tls_key, " or the client CA cannot be used"));
    }
    return absl::OkStatus();
  }

  absl::Status Bind() {
    const size_t colon = options_.listen.rfind(':');
    std::string host = options_.listen.substr(0, colon);
    int port = 0;
    if (colon == std::string::npos || host.empty() ||
        !absl::SimpleAtoi(options_.listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
      return FieldError("--http", absl::StrCat("\"", options_.listen, "\" is not HOST:PORT"));
    }
    const std::string shown = host;
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    }
    if (port == 0) {
      port = server_->bind_to_any_port(host);
    } else if (!server_->bind_to_port(host, port)) {
      port = -1;
    }
    if (port <= 0) {
      return FieldError("--http",
                        absl::StrCat("cannot serve on ", options_.listen, " (is the port taken?)"));
    }
    address_ = absl::StrCat(shown, ":", port);
    return absl::OkStatus();
  }

  void Answer(const httplib::Request& request, httplib::Response& response) const {
    SetHeaders(response);
    if (!options_.tls_client_ca.empty() && !options_.open_paths.contains(request.path) &&
        !HasCertificate(request)) {
      response.status = 403;
      response.set_content("a client certificate is required\n", "text/plain");
      return;
    }
    HttpRequest in;
    in.path = request.path;
    in.query = {request.params.begin(), request.params.end()};
    const HttpResponse out = options_.handler(in);
    response.status = out.status;
    response.set_content(out.body, out.content_type.c_str());
  }

  const Options options_;
  TlsFiles tls_;
  std::unique_ptr<httplib::Server> server_;
  std::string address_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  auto server = std::make_unique<HttpServerImpl>(std::move(options));
  LOWERD_RETURN_IF_ERROR(server->Init());
  return server;
}

}  // namespace lowerd::server
