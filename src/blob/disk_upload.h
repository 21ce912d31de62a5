#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "src/base/digest.h"
#include "src/base/fd.h"
#include "src/base/sha256.h"
#include "src/base/thread_pool.h"

namespace lowerd::blob {

// The bytes of one upload: a file, and the hash of what is in it. Several writers may come one
// after the other (a client that was cut off comes back); the newest owns it, and older ones get
// errors. Thread-safe.
class DiskUpload {
 public:
  // The upload to `path`; an empty path means a nameless file in `folder`. Opens nothing yet, so
  // that one object can be agreed on before anybody touches the file. While bytes are written, a
  // thread of `hashers` hashes them.
  DiskUpload(const Digest& digest, std::string path, std::string folder, bool flush_early,
             ThreadPool& hashers)
      : digest_(digest),
        path_(std::move(path)),
        folder_(std::move(folder)),
        flush_early_(flush_early),
        hashers_(hashers) {}

  // Opens or creates the file and hashes what is in it, once.
  absl::Status EnsureOpen();

  // Makes the caller the owner; the ticket goes with each later call.
  int64_t Acquire();

  absl::StatusOr<int64_t> committed_size(int64_t ticket) const;
  int64_t committed_size() const;
  absl::Time last_use() const;

  absl::Status Append(int64_t ticket, absl::Span<const absl::string_view> pieces);
  // DIGEST_MISMATCH unless the bytes are those of the digest. On success nobody can append any more
  // and the file is the caller's, flushed if `fsync`.
  absl::StatusOr<int> Seal(int64_t ticket, bool fsync);

  // Ends the upload without a blob and frees its bytes at once, though the file is open.
  void Abandon();

  const Digest& digest() const { return digest_; }
  // Empty for a nameless file.
  const std::string& path() const { return path_; }

 private:
  // Hashes what is in the file.
  absl::Status RehashLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteAndHashLocked(absl::Span<const absl::string_view> pieces, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOwnerLocked(int64_t ticket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Digest digest_;
  const std::string path_;
  const std::string folder_;
  const bool flush_early_;
  ThreadPool& hashers_;
  mutable absl::Mutex mutex_;
  Fd fd_ ABSL_GUARDED_BY(mutex_);
  Sha256 sha_ ABSL_GUARDED_BY(mutex_);
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;
  // Up to here the kernel has been asked to write back.
  int64_t flushed_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t owner_ ABSL_GUARDED_BY(mutex_) = 0;
  bool sealed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_use_ ABSL_GUARDED_BY(mutex_) = absl::Now();
};

}  // namespace lowerd::blob
