#include "server/status_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "server/operation_proto.h"
#include "src/base/error.h"

namespace lowerd::server {

std::string ShortDuration(absl::Duration duration) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(duration));
  if (seconds < 1) return absl::StrFormat("%.0f ms", seconds * 1000);
  if (seconds < 10) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.0f h", seconds / 3600);
  return absl::StrFormat("%.0f days", seconds / 86400);
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string SizeText(int64_t bytes) {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return absl::StrFormat("%.1f %s", value, units[unit]);
}

Html StateHtml(const jobs::Operation& operation) {
  Html out;
  if (!operation.done()) {
    const bool queued = operation.progress.state == jobs::State::kQueued;
    if (queued) {
      out.Raw("<span class=\"wait\">");
    } else {
      out.Raw("<span class=\"busy\">");
    }
    out.Text(StateName(operation.progress.state));
    if (queued && operation.queue_position > 0) {
      out.Text(absl::StrCat(" #", operation.queue_position));
    }
    return out.Raw("</span>");
  }
  if (operation.error.ok()) {
    out.Raw("<span class=\"good\">DONE</span>");
    if (operation.cached) out.Raw(" <span class=\"quiet\">cached</span>");
    return out;
  }
  const std::string reason = ReasonOf(operation.error);
  return out.Raw("<span class=\"bad\">")
      .Text(reason.empty() ? absl::StatusCodeToString(operation.error.code()) : reason)
      .Raw("</span>");
}

Html OperationLink(absl::string_view name) {
  Html out;
  // The name is "operations/" and letters, digits and dashes, or what a caller asked for, which
  // is then escaped and leads to a page that says so.
  return out.Raw("<a class=\"code\" href=\"/").Text(name).Raw("\">").Text(name).Raw("</a>");
}

std::string Page(absl::string_view title, const Html& body, absl::string_view live_source) {
  Html out;
  out.Raw(
         "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>")
      .Text(title)
      .Raw(" - lowerd</title><link rel=\"stylesheet\" href=\"/status.css\">");
  if (!live_source.empty()) {
    out.Raw(
        "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>"
        "<script src=\"/status.js\" defer></script>");
  }
  out.Raw("</head><body><header><h1><a href=\"/\">lowerd</a> ")
      .Text(title)
      .Raw("</h1><span id=\"connection\" class=\"quiet\"></span></header>")
      .Raw("<form action=\"/names\"><input name=\"q\" aria-label=\"Type name\" ")
      .Raw("placeholder=\"type name from a log\"> <button>Look up</button></form>")
      .Raw("<main id=\"live\" data-source=\"")
      .Text(live_source)
      .Raw("\">")
      .Add(body)
      .Raw("</main></body></html>\n");
  return std::move(out).Take();
}

}  // namespace lowerd::server
