#pragma once

#include <string>

namespace lowerd::client {

// A random UUID (version 4) from the system's entropy.
std::string RandomUuid();

}  // namespace lowerd::client
