#include "server/certificate_mirror.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "server/credentials.h"
#include "server/file_version.h"
#include "src/base/error.h"
#include "src/base/fd.h"

namespace lowerd::server {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(2);
constexpr int64_t kMaxFile = 4 << 20;

std::string VersionOf(const Config& config) {
  std::string out;
  for (const std::string& path : {config.tls_cert, config.tls_key, config.tls_client_ca}) {
    absl::StrAppend(&out, FileVersion(path), " ");
  }
  return out;
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  LOWERD_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(from, kMaxFile));
  const Fd file(::open(to.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoError(errno, to);
  return WriteAll(file.get(), bytes);
}

}  // namespace

CertificateMirror::CertificateMirror(const Config& config, std::string folder)
    : config_(config),
      folder_(std::move(folder)),
      cert_(folder_ + "/current/cert.pem"),
      key_(folder_ + "/current/key.pem"),
      client_ca_(config.tls_client_ca.empty() ? "" : folder_ + "/current/client_ca.pem") {}

absl::StatusOr<std::unique_ptr<CertificateMirror>> CertificateMirror::Create(
    const Config& config, const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (::mkdir(folder.c_str(), 0700) != 0) return ErrnoError(errno, folder);
  std::unique_ptr<CertificateMirror> out(new CertificateMirror(config, folder));
  {
    absl::MutexLock lock(&out->mutex_);
    LOWERD_RETURN_IF_ERROR(out->Copy());
  }
  out->thread_ = std::thread([&mirror = *out] { mirror.Watch(); });
  return out;
}

CertificateMirror::~CertificateMirror() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

absl::Status CertificateMirror::Copy() {
  version_ = VersionOf(config_);
  const std::string name = std::to_string(++copies_), copy = absl::StrCat(folder_, "/", name);
  if (::mkdir(copy.c_str(), 0700) != 0) return ErrnoError(errno, copy);
  Config copied = config_;
  LOWERD_RETURN_IF_ERROR(CopyFile(config_.tls_cert, copied.tls_cert = copy + "/cert.pem"));
  LOWERD_RETURN_IF_ERROR(CopyFile(config_.tls_key, copied.tls_key = copy + "/key.pem"));
  if (!config_.tls_client_ca.empty()) {
    copied.tls_client_ca = copy + "/client_ca.pem";
    LOWERD_RETURN_IF_ERROR(CopyFile(config_.tls_client_ca, copied.tls_client_ca));
  }
  // The copy, as the operator's files may change again meanwhile.
  LOWERD_RETURN_IF_ERROR(CheckCertificates(copied));
  const std::string link = absl::StrCat(folder_, "/next"), current = folder_ + "/current";
  if (::symlink(name.c_str(), link.c_str()) != 0 || ::rename(link.c_str(), current.c_str()) != 0) {
    return ErrnoError(errno, current);
  }
  return absl::OkStatus();
}

void CertificateMirror::Reload() {
  absl::MutexLock lock(&mutex_);
  // A file that is away for the moment changes this as well.
  if (VersionOf(config_) == version_) return;
  const absl::Status status = Copy();
  if (status.ok()) {
    spdlog::info("{} and its key have changed and are in force", config_.tls_cert);
  } else {
    spdlog::error("{}; the certificates that were in force stay", std::string(status.message()));
  }
}

void CertificateMirror::Watch() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kLookInterval)) return;
    }
    Reload();
  }
}

}  // namespace lowerd::server
