#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "src/base/digest.h"
#include "src/base/fd.h"

namespace lowerd::client {

// Bytes done of a total; `done` never shrinks but when a damaged transfer starts again.
using ByteProgress = std::function<void(int64_t done, int64_t total)>;

// A regular file that is to be uploaded, open, with its digest. Movable; reading is thread-safe.
// The file must not change meanwhile; if it does, the server refuses the upload.
class LocalFile {
 public:
  // Reads the file once, in chunks. INVALID_REQUEST names a file that cannot be read.
  static absl::StatusOr<LocalFile> Open(const std::string& path, const ByteProgress& progress = {});

  // A file whose digest is known; `path` only names it in errors.
  static LocalFile WithDigest(std::string path, Fd fd, const Digest& digest);

  const std::string& path() const { return path_; }
  const Digest& digest() const { return digest_; }
  // At most `size` bytes from `offset` into `out`, which is resized; fewer only at the end.
  absl::Status Read(int64_t offset, int64_t size, std::string& out) const;

 private:
  LocalFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Fd fd_;
  Digest digest_;
};

// A file that appears at its path whole or not at all: written under a temporary name beside it and
// renamed. A path that is there and no regular file (a device, a pipe) is written directly.
// Move-only; thread-compatible.
class AtomicFile {
 public:
  // The folder must exist.
  static absl::StatusOr<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the temporary file unless committed.
  ~AtomicFile();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Whether written bytes can be taken back.
  bool seekable() const { return !temporary_path_.empty(); }
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary_path, Fd fd);

  std::string path_;
  // Empty when writing directly, and after Commit.
  std::string temporary_path_;
  Fd fd_;
};

}  // namespace lowerd::client
