#include "server/status_page.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "server/operation_page.h"
#include "server/status_assets.h"
#include "server/status_text.h"
#include "src/base/error.h"
#include "src/base/type_name.h"
#include "src/base/version.h"

namespace lowerd::server {
namespace {

constexpr int kActiveRows = 100;
constexpr int kRecentRows = 30;
constexpr size_t kMaxOrigins = 100;
constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kOperationPrefix[] = "/operations/";

void Tile(Html& out, absl::string_view name, absl::string_view value) {
  out.Raw("<div class=\"tile\"><b>").Text(value).Raw("</b><span class=\"quiet\">");
  out.Text(name).Raw("</span></div>");
}

Html ErrorHtml(const absl::Status& status) {
  Html out;
  return out.Raw("<p class=\"bad\">").Text(status.message()).Raw("</p>");
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    default:
      return 503;
  }
}

void AddOperation(const jobs::Operation& operation, absl::Time now, Html& out) {
  out.Raw("<tr><td>").Add(OperationLink(operation.name)).Raw("</td><td>");
  out.Add(StateHtml(operation)).Raw("</td><td>");
  const jobs::Progress& progress = operation.progress;
  if (!operation.done() && progress.targets_total > 0) {
    out.Raw("<progress max=\"").Text(absl::StrCat(progress.targets_total)).Raw("\" value=\"");
    out.Text(absl::StrCat(progress.targets_done)).Raw("\"></progress> ");
    out.Text(absl::StrCat(progress.targets_done, "/", progress.targets_total));
  }
  out.Raw("</td><td>").Text(operation.client).Raw("</td><td>");
  if (operation.started) {
    out.Text(ShortDuration(operation.ended.value_or(now) - *operation.started));
  }
  out.Raw("</td><td title=\"").Text(TimeText(operation.created)).Raw("\">");
  out.Text(ShortDuration(now - operation.created)).Raw(" ago</td></tr>");
}

Html OperationsTable(const absl::StatusOr<jobs::JobService::Page>& page,
                     absl::string_view if_none) {
  if (!page.ok()) return ErrorHtml(page.status());
  Html out;
  if (page->operations.empty()) {
    return out.Raw("<p class=\"quiet\">").Text(if_none).Raw("</p>");
  }
  out.Raw(
      "<div class=\"scroll\"><table><tr><th>Operation</th><th>State</th><th>Targets</th>"
      "<th>Client</th><th>Ran</th><th>Created</th></tr>");
  const absl::Time now = absl::Now();
  for (const jobs::Operation& operation : page->operations) AddOperation(operation, now, out);
  out.Raw("</table></div>");
  if (!page->next_page_token.empty()) {
    out.Raw("<p class=\"quiet\">There are more: <code>lowerctl ops list</code></p>");
  }
  return out;
}

void AddOrigin(const names::NamedOrigin& named, Html& out) {
  const names::Origin& origin = named.origin;
  const auto fact = [&out](absl::string_view name, absl::string_view value) {
    out.Raw("<tr><th>").Text(name).Raw("</th><td class=\"code\">").Text(value).Raw("</td></tr>");
  };
  const std::string lowered = MangledName(origin.base_name, named.mangle);
  out.Raw("<div class=\"scroll\"><table>");
  fact("Lowered type", lowered);
  fact("Wrapper type", WrapperNameOf(lowered));
  fact("Model", origin.model.ToString());
  fact("Module", origin.module_path.empty() ? "(the root)" : origin.module_path);
  fact("Original type", origin.original_type);
  fact("Backend", absl::StrCat(origin.backend, " ", origin.backend_version));
  fact("Compile spec", absl::StrCat("sha256:", origin.compile_spec_sha256));
  fact("Claimed", TimeText(named.claimed));
  out.Raw("<tr><th>Operation</th><td>").Add(OperationLink(origin.operation));
  out.Raw("</td></tr></table></div>");
}

}  // namespace

Html StatusPage::Numbers() const {
  const jobs::JobService::Stats jobs = jobs_.GetStats();
  const pool::WorkerPool::Stats pool = workers_.GetStats();
  const blob::BlobStore::Stats blobs = blobs_.GetStats();
  Html out;
  out.Raw("<div class=\"tiles\">");
  Tile(out, "jobs waiting", absl::StrCat(jobs.queued));
  Tile(out, "jobs running", absl::StrCat(jobs.running));
  Tile(out, "workers busy", absl::StrCat(pool.busy, " of ", pool.workers));
  Tile(out, "worker processes ready", absl::StrCat(pool.ready));
  Tile(out, "crashes · out of memory · deadline",
       absl::StrCat(pool.crashes, " · ", pool.out_of_memory, " · ", pool.deadline_exceeded));
  Tile(out, "cache hits · misses", absl::StrCat(jobs.cache_hits, " · ", jobs.cache_misses));
  Tile(out,
       blobs.limit_bytes > 0 ? absl::StrCat("store, of ", SizeText(blobs.limit_bytes)) : "store",
       SizeText(blobs.bytes));
  Tile(out, "blobs · evicted", absl::StrCat(blobs.blobs, " · ", blobs.evictions));
  return out.Raw("</div>");
}

Html StatusPage::Overview() {
  Html out;
  if (const absl::Status health = workers_.Health(); !health.ok()) out.Add(ErrorHtml(health));
  out.Add(Numbers());
  jobs::JobService::Filter active;
  active.done = false;
  out.Raw("<h2>Now</h2>");
  out.Add(OperationsTable(jobs_.List(active, kActiveRows, ""), "Nothing waits or runs."));
  jobs::JobService::Filter ended;
  ended.done = true;
  out.Raw("<h2>Recently ended</h2>");
  out.Add(OperationsTable(jobs_.List(ended, kRecentRows, ""), "Nothing has ended yet."));
  const auto& producer = workers_.toolchain().producer();
  out.Raw("<p class=\"quiet\">").Text(absl::StrCat("lowerd ", kVersion, ", libtorch "));
  return out.Text(producer.libtorch_version()).Raw("</p>");
}

HttpResponse StatusPage::OperationPage(const HttpRequest& request) {
  const std::string name = request.path.substr(1);
  const absl::StatusOr<jobs::Operation> operation = jobs_.Get(name);
  Html body = operation.ok() ? OperationHtml(*operation) : ErrorHtml(operation.status());
  HttpResponse out{HttpStatusOf(operation.status()), kHtml, ""};
  if (request.query.contains("part")) {
    out.body = std::move(body).Take();
  } else {
    const bool live = operation.ok() && !operation->done();
    out.body = Page(name, body, live ? absl::StrCat(request.path, "?part") : "");
  }
  return out;
}

HttpResponse StatusPage::NamesPage(const HttpRequest& request) {
  const auto found = request.query.find("q");
  const std::string name = found == request.query.end() ? "" : found->second;
  Html body;
  if (name.empty()) {
    body.Raw("<p>Enter a name as it stands in a log: with or without mangle, wrapper or lowered ")
        .Raw("module, with a method behind it, or as a path below <code>code/</code>.</p>");
    return {200, kHtml, Page("type names", body, "")};
  }
  body.Raw("<h2><code>").Text(name).Raw("</code></h2>");
  const auto origins = names_.Resolve(name);
  if (!origins.ok()) {
    body.Add(ErrorHtml(origins.status()));
    return {HttpStatusOf(origins.status()), kHtml, Page("type names", body, "")};
  }
  if (origins->empty()) body.Raw("<p>This server gave no such name.</p>");
  for (size_t i = 0; i < origins->size() && i < kMaxOrigins; ++i) AddOrigin((*origins)[i], body);
  if (origins->size() > kMaxOrigins) {
    body.Raw("<p class=\"quiet\">There are more: <code>lowerctl names resolve</code></p>");
  }
  return {origins->empty() ? 404 : 200, kHtml, Page("type names", body, "")};
}

HttpResponse StatusPage::Handle(const HttpRequest& request) {
  if (request.path == "/") return {200, kHtml, Page("status", Overview(), "/overview")};
  if (request.path == "/overview") return {200, kHtml, Overview().Take()};
  if (request.path == "/names") return NamesPage(request);
  if (request.path == "/status.css") return {200, "text/css; charset=utf-8", kStatusStyle};
  if (request.path == "/status.js") {
    return {200, "text/javascript; charset=utf-8", kStatusScript};
  }
  if (absl::StartsWith(request.path, kOperationPrefix)) return OperationPage(request);
  return {404, "text/plain; charset=utf-8", "there is nothing here\n"};
}

}  // namespace lowerd::server
