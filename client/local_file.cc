#include "client/local_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "client/uuid.h"
#include "src/base/error.h"
#include "src/base/sha256.h"

namespace lowerd::client {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

absl::Status CannotRead(const std::string& path, absl::string_view why) {
  return MakeError(Reason::kInvalidRequest, absl::StrCat("cannot read ", path, ": ", why));
}

absl::Status CannotWrite(const std::string& path, int error_number) {
  return MakeError(Reason::kInternalError,
                   absl::StrCat("cannot write ", path, ": ", std::strerror(error_number)));
}

}  // namespace

absl::StatusOr<LocalFile> LocalFile::Open(const std::string& path, const ByteProgress& progress) {
  // O_NONBLOCK: opening a pipe must fail below, not wait for its writer.
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return CannotRead(path, std::strerror(errno));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return CannotRead(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return CannotRead(path, "not a regular file");
  LocalFile file(path, std::move(fd));
  Sha256 sha;
  std::string chunk;
  int64_t done = 0;
  do {
    LOWERD_RETURN_IF_ERROR(file.Read(done, kChunkBytes, chunk));
    sha.Update(chunk);
    done += static_cast<int64_t>(chunk.size());
    if (progress) progress(done, std::max<int64_t>(done, info.st_size));
  } while (!chunk.empty());
  file.digest_ = Digest(sha.Finish(), done);
  return file;
}

LocalFile LocalFile::WithDigest(std::string path, Fd fd, const Digest& digest) {
  LocalFile file(std::move(path), std::move(fd));
  file.digest_ = digest;
  return file;
}

absl::Status LocalFile::Read(int64_t offset, int64_t size, std::string& out) const {
  out.resize(static_cast<size_t>(size));
  size_t have = 0;
  while (have < out.size()) {
    const ssize_t n =
        pread(fd_.get(), out.data() + have, out.size() - have, offset + static_cast<int64_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CannotRead(path_, std::strerror(errno));
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  out.resize(have);
  return absl::OkStatus();
}

AtomicFile::AtomicFile(std::string path, std::string temporary_path, Fd fd)
    : path_(std::move(path)), temporary_path_(std::move(temporary_path)), fd_(std::move(fd)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path) {
  struct stat info;
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return CannotWrite(path, EISDIR);
  if (exists && !S_ISREG(info.st_mode)) {
    Fd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.valid()) return CannotWrite(path, errno);
    return AtomicFile(path, "", std::move(fd));
  }
  const std::filesystem::path target(path);
  // The name does not depend on the length of the target's, which may be the longest allowed.
  std::string temporary =
      (target.parent_path() / absl::StrCat(".lowerctl-", RandomUuid(), ".tmp")).string();
  Fd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return CannotWrite(path, errno);
  return AtomicFile(path, std::move(temporary), std::move(fd));
}

absl::Status AtomicFile::Commit() {
  // Some file systems report a failed write only here.
  if (close(fd_.Release()) != 0) return CannotWrite(path_, errno);
  if (temporary_path_.empty()) return absl::OkStatus();
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) return CannotWrite(path_, errno);
  temporary_path_.clear();
  return absl::OkStatus();
}

}  // namespace lowerd::client
