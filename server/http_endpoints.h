#pragma once

#include "server/health.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/status_page.h"

namespace lowerd::server {

// Readable by whoever reaches the port, without a client certificate: probes have none.
inline constexpr char kLivePath[] = "/healthz";
inline constexpr char kReadyPath[] = "/readyz";

// What the HTTP listener serves. Thread-safe; may block.
class HttpEndpoints {
 public:
  // All must outlive this object.
  HttpEndpoints(const Metrics& metrics, Health& health, StatusPage& page)
      : metrics_(metrics), health_(health), page_(page) {}

  HttpResponse Handle(const HttpRequest& request);

 private:
  const Metrics& metrics_;
  Health& health_;
  StatusPage& page_;
};

}  // namespace lowerd::server
