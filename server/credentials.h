#pragma once

#include <memory>

#include "absl/status/status.h"
#include <grpcpp/security/server_credentials.h>

#include "server/authorizer.h"
#include "server/config.h"

namespace lowerd::server {

// INVALID_REQUEST if a TLS file that the configuration names holds no usable certificate or key, or
// if the key is not the certificate's.
absl::Status CheckCertificates(const Config& config);

// TLS with certificates that are read again when their files change (looked at every few seconds);
// insecure if the configuration names no certificate. Client certificates are verified if it names
// a client CA, and required unless a token may stand for one. `authorizer`, which may be null
// without TLS, sees every call.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const Config& config, std::shared_ptr<Authorizer> authorizer);

}  // namespace lowerd::server
