#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lowerd {

// Owns a file descriptor; closes it at destruction. Move-only; thread-compatible.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { Reset(); }

  // -1 if it owns none.
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();
  // A second descriptor of the same open file, close-on-exec.
  absl::StatusOr<Fd> Duplicate() const;

 private:
  int fd_ = -1;
};

// Opens with O_CLOEXEC. The error names the path.
absl::StatusOr<Fd> OpenFile(const std::string& path, int flags, int mode = 0600);
// Writes all bytes, at the descriptor's offset or at `offset`; goes on after EINTR and short
// writes.
absl::Status WriteAll(int fd, absl::string_view bytes);
absl::Status WriteAllAt(int fd, absl::string_view bytes, int64_t offset);
// The whole file from offset 0, at most `limit` bytes (LIMIT_EXCEEDED above that).
absl::StatusOr<std::string> ReadFileToString(int fd, int64_t limit);
absl::StatusOr<std::string> ReadFileToString(const std::string& path, int64_t limit);
// Size of the open file in bytes.
absl::StatusOr<int64_t> FileSize(int fd);

}  // namespace lowerd
