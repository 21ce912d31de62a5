#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace lowerd::server {

enum class LogFormat { kText, kJson };

// Logs go to standard error: one line each, as text or as JSON objects. Call once, before threads.
void SetUpLogging(const std::string& level, LogFormat format);

enum class LogLevel { kDebug, kInfo, kWarning };

// Name and value; an empty value is left out. Values may hold anything.
using LogFields = std::vector<std::pair<absl::string_view, std::string>>;

// One line about something that happened: `event` and the fields, as key=value in text and as
// members of the object in JSON. Thread-safe.
void LogEvent(LogLevel level, absl::string_view event, const LogFields& fields);

// What LogEvent writes behind time and level; for tests.
std::string FormatEvent(LogFormat format, absl::string_view event, const LogFields& fields);

}  // namespace lowerd::server
