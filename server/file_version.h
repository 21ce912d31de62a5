#pragma once

#include <string>

namespace lowerd::server {

// Changes whenever the file does, or another takes its name; empty if there is none.
std::string FileVersion(const std::string& path);

}  // namespace lowerd::server
