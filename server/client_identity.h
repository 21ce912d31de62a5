#pragma once

#include <string>

#include <grpcpp/server_context.h>

namespace lowerd::server {

// Who calls, for fairness, request_id scope and logs: the name in a client certificate, else the
// peer's address without its port ("unix" for a Unix socket).
std::string ClientIdentity(const grpc::ServerContextBase& context);

}  // namespace lowerd::server
