#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lowerd::rpc {

// Addresses as gRPC takes them: "host:port", "[ipv6]:port", "unix:/path", "unix-abstract:name".

// Whether only this machine can reach the address: a unix socket, "localhost", 127.0.0.0/8 or ::1,
// with or without a port. Other names are not, whatever they resolve to today.
bool IsLoopback(absl::string_view address);

// INVALID_ARGUMENT (without a reason) that says what is wrong with an address to serve on. Port 0
// lets the system choose.
absl::Status CheckListenAddress(absl::string_view address);

}  // namespace lowerd::rpc
