#pragma once

#include <grpcpp/security/authorization_policy_provider.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace lowerd::server {

// TLS with certificates that are read again when their files change (looked at every few seconds);
// insecure if the configuration names no certificate. Client certificates are required and verified
// if it names a client CA.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const Config& config);

// gRPC's own authorization engine on the policy file, read again when it changes; null if the
// configuration names none. INVALID_REQUEST says what is wrong with the policy.
absl::StatusOr<std::shared_ptr<grpc::experimental::AuthorizationPolicyProviderInterface>>
MakeAuthorizationPolicy(const Config& config);

}  // namespace lowerd::server
