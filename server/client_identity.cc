#include "server/client_identity.h"

#include <memory>

#include "absl/strings/match.h"
#include <grpcpp/security/auth_context.h>

#include "server/authorizer.h"

namespace lowerd::server {

std::string ClientIdentity(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr) {
    const auto tokens = auth->FindPropertyValues(kTokenNameProperty);
    if (!tokens.empty()) return std::string(tokens.front().data(), tokens.front().size());
  }
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const auto names = auth->GetPeerIdentity();
    if (!names.empty()) return std::string(names.front().data(), names.front().size());
  }
  const std::string peer = context.peer();
  if (absl::StartsWith(peer, "unix:")) return "unix";
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace lowerd::server
