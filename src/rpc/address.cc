#include "src/rpc/address.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <arpa/inet.h>

namespace lowerd::rpc {
namespace {

constexpr int kMaxPort = 65535;

bool IsUnix(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

// Without the port and the brackets of an IPv6 address.
std::string HostOf(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "[")) return std::string(address.substr(0, address.find(']')));
  return std::string(address.substr(0, address.rfind(':')));
}

}  // namespace

bool IsLoopback(absl::string_view address) {
  if (IsUnix(address)) return true;
  const std::string host = HostOf(address);
  if (host == "localhost") return true;
  in_addr v4;
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckListenAddress(absl::string_view address) {
  if (IsUnix(address)) {
    return address.back() == ':'
               ? absl::InvalidArgumentError(absl::StrCat("\"", address, "\" names no unix socket"))
               : absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > kMaxPort) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not HOST:PORT"));
  }
  return absl::OkStatus();
}

}  // namespace lowerd::rpc
