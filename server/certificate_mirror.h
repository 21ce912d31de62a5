#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "server/config.h"

namespace lowerd::server {

// The certificates that are in force: the last ones that were good. gRPC watches files by itself,
// but takes what it finds, and then serves nobody if that is half written or if a key has not yet
// followed its certificate. So the operator's files are checked first and copied into a private
// folder, which gRPC watches. What is not good is logged, and what was in force stays. Thread-safe.
class CertificateMirror {
 public:
  // The files that `config` names must be good now (CheckCertificates). `folder` is made anew with
  // mode 0700 and removed at the end; it holds a copy of the private key.
  static absl::StatusOr<std::unique_ptr<CertificateMirror>> Create(const Config& config,
                                                                   const std::string& folder);
  ~CertificateMirror();

  // Paths for gRPC to watch; `client_ca` is empty if the configuration names none. A change of
  // certificate and key appears to who reads both as one.
  const std::string& cert() const { return cert_; }
  const std::string& key() const { return key_; }
  const std::string& client_ca() const { return client_ca_; }

  // Looks at the files now; otherwise that happens every two seconds.
  void Reload();

 private:
  CertificateMirror(const Config& config, std::string folder);

  absl::Status Copy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch();

  const Config config_;
  const std::string folder_;
  const std::string cert_;
  const std::string key_;
  const std::string client_ca_;
  absl::Mutex mutex_;
  // By what a change of the operator's files shows.
  std::string version_ ABSL_GUARDED_BY(mutex_);
  int copies_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lowerd::server
