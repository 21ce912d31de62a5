#include "server/http_endpoints.h"

#include "absl/strings/str_cat.h"

namespace lowerd::server {
namespace {

HttpResponse StatusAnswer(const absl::Status& status) {
  HttpResponse out;
  out.status = status.ok() ? 200 : 503;
  out.body = status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n");
  return out;
}

}  // namespace

HttpResponse HttpEndpoints::Handle(const HttpRequest& request) {
  if (request.path == kLivePath) return StatusAnswer(health_.Live());
  if (request.path == kReadyPath) return StatusAnswer(health_.Ready());
  if (request.path == "/metrics") {
    return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Text()};
  }
  return page_.Handle(request);
}

}  // namespace lowerd::server
