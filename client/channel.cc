#include "client/channel.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/base/version.h"
#include "src/rpc/address.h"

namespace lowerd::client {
namespace {

constexpr int64_t kMaxPemBytes = 4 << 20;
constexpr absl::Duration kConnectTimeout = absl::Seconds(20);
constexpr int64_t kMaxTokenBytes = 64 << 10;
// Plans and descriptions of big models are long.
constexpr int kMaxReceiveBytes = 256 << 20;

bool WantsTls(const ClientOptions& options) {
  return options.tls || !options.tls_ca_file.empty() || !options.tls_cert_file.empty() ||
         !options.tls_key_file.empty();
}

absl::StatusOr<std::string> ReadSetting(const std::string& path, int64_t limit) {
  absl::StatusOr<std::string> text = ReadFileToString(path, limit);
  if (!text.ok()) return MakeError(Reason::kInvalidRequest, text.status().message());
  return text;
}

// gRPC would only say, at the first call, that it cannot connect.
absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view kind) {
  LOWERD_ASSIGN_OR_RETURN(std::string text, ReadSetting(path, kMaxPemBytes));
  if (!absl::StrContains(text, "-----BEGIN ") ||
      !absl::StrContains(text, absl::StrCat(kind, "-----"))) {
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat(path, " holds no ", kind, " in PEM form"));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TlsCredentials(
    const ClientOptions& options) {
  if (options.tls_cert_file.empty() != options.tls_key_file.empty()) {
    return MakeError(Reason::kInvalidRequest,
                     "a TLS certificate and its key go together; give both or none");
  }
  grpc::SslCredentialsOptions ssl;
  if (!options.tls_ca_file.empty()) {
    LOWERD_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.tls_ca_file, "CERTIFICATE"));
  }
  if (!options.tls_cert_file.empty()) {
    LOWERD_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem(options.tls_cert_file, "CERTIFICATE"));
    LOWERD_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem(options.tls_key_file, "PRIVATE KEY"));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::SslCredentials(ssl);
  if (options.token_file.empty()) return credentials;
  LOWERD_ASSIGN_OR_RETURN(const std::string token, ReadSetting(options.token_file, kMaxTokenBytes));
  const absl::string_view stripped = absl::StripAsciiWhitespace(token);
  if (stripped.empty()) {
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat(options.token_file, " holds no token; it is empty"));
  }
  return grpc::CompositeChannelCredentials(credentials,
                                           grpc::AccessTokenCredentials(std::string(stripped)));
}

}  // namespace

bool IsPlaintext(const ClientOptions& options) {
  return !WantsTls(options) && (options.insecure || rpc::IsLoopback(ServerAddress(options.server)));
}

std::string ServerAddress(absl::string_view server) {
  const absl::string_view behind_brackets = server.substr(server.rfind(']') + 1);
  if (absl::StartsWith(server, "unix") || absl::StrContains(behind_brackets, ':'))
    return std::string(server);
  return absl::StrCat(server, ":50051");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const ClientOptions& options) {
  if (options.server.empty()) {
    return MakeError(Reason::kInvalidRequest, "the server's address is empty; give host:port");
  }
  if (options.insecure && WantsTls(options)) {
    return MakeError(Reason::kInvalidRequest,
                     "\"insecure\" and TLS files contradict each other; give one of them");
  }
  const bool plaintext = IsPlaintext(options);
  if (plaintext && !options.token_file.empty()) {
    return MakeError(Reason::kInvalidRequest,
                     "a token is only sent over TLS; give the server's CA certificate as well");
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!plaintext) {
    LOWERD_ASSIGN_OR_RETURN(credentials, TlsCredentials(options));
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetUserAgentPrefix(absl::StrCat("lowerd-client/", kVersion));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.keepalive)));
  // gRPC's own reconnection must not be slower than the tries that wait for it.
  const int first_ms = static_cast<int>(absl::ToInt64Milliseconds(options.initial_backoff));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, first_ms);
  // In spite of its name, how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kConnectTimeout)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.maximum_backoff)));
  // Tries are counted in one place: here, not in gRPC.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (rpc::IsLoopback(ServerAddress(options.server)))
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(ServerAddress(options.server), credentials, arguments);
}

}  // namespace lowerd::client
