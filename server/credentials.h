#pragma once

#include <memory>

#include <grpcpp/security/server_credentials.h>

#include "server/config.h"

namespace lowerd::server {

// TLS with certificates that are read again when their files change (looked at every few seconds);
// insecure if the configuration names no certificate. Client certificates are required and verified
// if it names a client CA.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const Config& config);

}  // namespace lowerd::server
