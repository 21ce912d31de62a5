#pragma once

#include <memory>

#include "absl/status/status.h"
#include <grpcpp/security/server_credentials.h>

#include "server/authorizer.h"
#include "server/certificate_mirror.h"
#include "server/config.h"

namespace lowerd::server {

// INVALID_REQUEST if a TLS file that the configuration names holds no usable certificate or key, or
// if the key is not the certificate's.
absl::Status CheckCertificates(const Config& config);

// TLS with the certificates of `mirror`, which must outlive the server, read again when they
// change; insecure if it is null. Client certificates are verified if the configuration names a
// client CA, and required unless a token may stand for one. `authorizer` sees every call on TLS.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const Config& config, const CertificateMirror* mirror, std::shared_ptr<Authorizer> authorizer);

}  // namespace lowerd::server
