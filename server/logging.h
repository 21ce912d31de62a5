#pragma once

#include <string>

namespace lowerd::server {

// Logs go to standard error: one line each, as text or as JSON objects. Call once, before threads.
void SetUpLogging(const std::string& level, bool json);

}  // namespace lowerd::server
