#include "server/authorizer.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include <spdlog/spdlog.h>

#include "server/file_version.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(2);
constexpr int64_t kMaxFile = 16 << 20;
constexpr absl::string_view kBearer = "Bearer ";
// Load balancers and kubelets have no token.
constexpr absl::string_view kHealth = "/grpc.health.v1.Health/";

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

std::vector<std::string> Principals(const grpc::AuthContext& context) {
  std::vector<std::string> out;
  for (const char* property :
       {kTokenNameProperty, "x509_subject_alternative_name", "x509_common_name"}) {
    for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
      out.emplace_back(value.data(), value.size());
    }
  }
  return out;
}

}  // namespace

Authorizer::Authorizer(const Options& options) : on_refusal_(options.on_refusal) {
  tokens_.path = options.token_file;
  policy_.path = options.policy_file;
}

absl::StatusOr<std::shared_ptr<Authorizer>> Authorizer::Create(const Options& options) {
  std::shared_ptr<Authorizer> out(new Authorizer(options));
  absl::MutexLock lock(&out->mutex_);
  LOWERD_RETURN_IF_ERROR(out->Read(out->tokens_));
  LOWERD_RETURN_IF_ERROR(out->Read(out->policy_));
  return out;
}

template <typename T>
absl::Status Authorizer::Read(Watched<T>& watched) {
  if (watched.path.empty()) return absl::OkStatus();
  const std::string version = FileVersion(watched.path);
  if (!version.empty() && version == watched.version) return absl::OkStatus();
  const auto text = ReadFileToString(watched.path, kMaxFile);
  if (!text.ok()) return FieldError(watched.path, text.status().message());
  auto parsed = T::Parse(*text);
  // A file that is wrong is not looked at again until it changes.
  const bool first = watched.value == nullptr;
  if (!first) watched.version = version;
  if (!parsed.ok()) return FieldError(watched.path, parsed.status().message());
  watched.version = version;
  watched.value = std::make_shared<const T>(*std::move(parsed));
  if (!first) spdlog::info("{} has changed and is in force", watched.path);
  return absl::OkStatus();
}

void Authorizer::ReloadLocked() {
  next_look_ = absl::Now() + kLookInterval;
  for (const absl::Status& status : {Read(tokens_), Read(policy_)}) {
    if (!status.ok()) spdlog::error("{}; what was in force stays", std::string(status.message()));
  }
}

void Authorizer::Reload() {
  absl::MutexLock lock(&mutex_);
  ReloadLocked();
}

grpc::Status Authorizer::Process(const InputMetadata& auth_metadata, grpc::AuthContext* context,
                                 OutputMetadata* consumed_auth_metadata, OutputMetadata*) {
  const absl::Status status = Decide(auth_metadata, *context, *consumed_auth_metadata);
  if (!status.ok() && on_refusal_) on_refusal_(status);
  return rpc::ToGrpc(status);
}

absl::Status Authorizer::Decide(const InputMetadata& auth_metadata, grpc::AuthContext& context,
                                OutputMetadata& consumed_auth_metadata) {
  std::shared_ptr<const TokenSet> tokens;
  std::shared_ptr<const Policy> policy;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Now() >= next_look_) ReloadLocked();
    tokens = tokens_.value;
    policy = policy_.value;
  }
  Policy::Call call;
  absl::string_view token;
  for (const auto& [key, value] : auth_metadata) {
    call.headers.push_back({View(key), View(value)});
    if (View(key) == ":path") call.path = View(value);
    if (View(key) == "authorization" && absl::StartsWithIgnoreCase(View(value), kBearer)) {
      token = View(value).substr(kBearer.size());
      consumed_auth_metadata.emplace(std::string(key.data(), key.size()),
                                     std::string(value.data(), value.size()));
    }
  }
  if (tokens != nullptr) {
    if (!token.empty()) {
      const auto name = tokens->NameOf(token, absl::Now());
      if (!name.ok()) return name.status();
      context.AddProperty(kTokenNameProperty, *name);
    } else if (!context.IsPeerAuthenticated() && !absl::StartsWith(call.path, kHealth)) {
      return MakeError(Reason::kNotAuthenticated,
                       "this server wants a client certificate or a bearer token "
                       "(lowerctl --token-file)");
    }
  }
  if (policy == nullptr) return absl::OkStatus();
  call.principals = Principals(context);
  const absl::Status allowed = policy->Check(call);
  if (!allowed.ok()) spdlog::info("denied: {}", std::string(allowed.message()));
  return allowed;
}

}  // namespace lowerd::server
