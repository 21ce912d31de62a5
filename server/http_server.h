#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace lowerd::server {

struct HttpRequest {
  // Without query, percent-decoded.
  std::string path;
  // Decoded; of a name given several times, any.
  std::map<std::string, std::string> query;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// A small HTTP/1.1 server for operators: answers GET and HEAD, closes each connection after its
// answer, and gives browsers headers that forbid everything but what came from this server. The
// handler runs on a fixed number of threads, so it may block.
class HttpServer {
 public:
  struct Options {
    // HOST:PORT; port 0 picks one.
    std::string listen;
    // PEM files, read again at each handshake. Empty: no TLS.
    std::string tls_cert;
    std::string tls_key;
    // Callers must have a certificate of this CA, but for `open_paths`.
    std::string tls_client_ca;
    std::set<std::string> open_paths;
    std::function<HttpResponse(const HttpRequest&)> handler;
  };

  // INVALID_REQUEST if it cannot serve there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  // Ends after the answers under way.
  virtual ~HttpServer() = default;

  // The bound "host:port".
  virtual const std::string& address() const = 0;
};

}  // namespace lowerd::server
