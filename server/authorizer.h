#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/security/auth_metadata_processor.h>

#include "server/policy.h"
#include "server/tokens.h"

namespace lowerd::server {

// The property of a call's AuthContext that holds the name of its token.
inline constexpr char kTokenNameProperty[] = "lowerd_token_name";

// Decides about every call on a TLS listener before its service sees it: who calls (a client
// certificate, a bearer token), and whether the policy lets them. The files are read again when
// they change; a file that cannot be read or parsed then is logged, and what was in force stays.
// Thread-safe.
class Authorizer final : public grpc::AuthMetadataProcessor {
 public:
  struct Options {
    // Either may be empty: no tokens, or no policy.
    std::string token_file;
    std::string policy_file;
    // Told about each call that is refused; may be empty. Called on gRPC's threads.
    std::function<void(const absl::Status&)> on_refusal = nullptr;
  };

  // INVALID_REQUEST if a file cannot be read or parsed.
  static absl::StatusOr<std::shared_ptr<Authorizer>> Create(const Options& options);

  // Looks at the files now. Otherwise that happens every few seconds, as calls come.
  void Reload();

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& auth_metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed_auth_metadata,
                       OutputMetadata* response_metadata) override;

 private:
  // What a file held, and by what its change shows.
  template <typename T>
  struct Watched {
    std::string path;
    std::string version;
    std::shared_ptr<const T> value;
  };

  explicit Authorizer(const Options& options);

  template <typename T>
  absl::Status Read(Watched<T>& watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReloadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // As Process, which counts what this refuses.
  absl::Status Decide(const InputMetadata& auth_metadata, grpc::AuthContext& context,
                      OutputMetadata& consumed_auth_metadata);

  const std::function<void(const absl::Status&)> on_refusal_;
  absl::Mutex mutex_;
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Watched<TokenSet> tokens_ ABSL_GUARDED_BY(mutex_);
  Watched<Policy> policy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lowerd::server
