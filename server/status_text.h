#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "server/html.h"
#include "src/jobs/operation.h"

namespace lowerd::server {

// How the pages write things that occur in several of them.

// "3 s", "12 min", "2 h"; "0 s" for a negative one.
std::string ShortDuration(absl::Duration duration);
// "2026-03-01 12:00:00 UTC".
std::string TimeText(absl::Time time);
// "1.5 MiB".
std::string SizeText(int64_t bytes);
// The state with its colour; of an ended operation how it ended.
Html StateHtml(const jobs::Operation& operation);
// A link to the operation's page; `name` is "operations/{id}".
Html OperationLink(absl::string_view name);
// A whole page around `body`. `live_source`, if not empty, is where the script gets the body anew.
std::string Page(absl::string_view title, const Html& body, absl::string_view live_source);

}  // namespace lowerd::server
