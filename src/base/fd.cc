#include "src/base/fd.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "src/base/error.h"

namespace lowerd {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.Release();
  }
  return *this;
}

void Fd::Reset() {
  // After EINTR Linux has closed the descriptor all the same.
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

absl::StatusOr<Fd> Fd::Duplicate() const {
  Fd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoError(errno, "duplicating a file descriptor");
  return copy;
}

absl::StatusOr<Fd> OpenFile(const std::string& path, int flags, int mode) {
  Fd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoError(errno, path);
  return fd;
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "writing");
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WriteAllAt(int fd, absl::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "writing");
    }
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFileToString(int fd, int64_t limit) {
  LOWERD_ASSIGN_OR_RETURN(const int64_t size, FileSize(fd));
  if (size > limit) {
    return MakeError(Reason::kLimitExceeded,
                     absl::StrCat("a file of ", size, " bytes is over the limit of ", limit));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "reading");
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

absl::StatusOr<std::string> ReadFileToString(const std::string& path, int64_t limit) {
  LOWERD_ASSIGN_OR_RETURN(const Fd fd, OpenFile(path, O_RDONLY));
  auto bytes = ReadFileToString(fd.get(), limit);
  if (!bytes.ok())
    return MakeError(Reason::kInternalError, absl::StrCat(path, ": ", bytes.status().message()));
  return bytes;
}

absl::StatusOr<int64_t> FileSize(int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError(errno, "reading a file's size");
  return static_cast<int64_t>(st.st_size);
}

}  // namespace lowerd
