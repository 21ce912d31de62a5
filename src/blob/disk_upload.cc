#include "src/blob/disk_upload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include <sys/uio.h>

#include "src/base/error.h"

namespace lowerd::blob {
namespace {

constexpr size_t kReadSize = 1 << 20;
// The final flush is short if most has been written back before.
constexpr int64_t kFlushStep = 8 << 20;
// Below this, waking another thread costs more than the hash.
constexpr int64_t kParallelBytes = 128 << 10;

// As WriteAllAt, of several pieces: a message comes in pieces of an HTTP/2 frame each.
absl::Status WritePieces(int fd, absl::Span<const absl::string_view> pieces, int64_t offset) {
  // Far fewer than IOV_MAX, which is 1024.
  std::array<iovec, 64> parts;
  // Of the first piece, what has been written.
  size_t done = 0;
  while (!pieces.empty()) {
    int count = 0;
    for (const absl::string_view piece : pieces.first(std::min(pieces.size(), parts.size()))) {
      const size_t skip = count == 0 ? done : 0;
      parts[static_cast<size_t>(count++)] = {const_cast<char*>(piece.data()) + skip,
                                             piece.size() - skip};
    }
    const ssize_t n = ::pwritev(fd, parts.data(), count, offset);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "writing");
    }
    offset += n;
    done += static_cast<size_t>(n);
    while (!pieces.empty() && done >= pieces.front().size()) {
      done -= pieces.front().size();
      pieces.remove_prefix(1);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DiskUpload::EnsureOpen() {
  absl::MutexLock lock(&mutex_);
  if (fd_.valid()) return absl::OkStatus();
  if (path_.empty()) {
    LOWERD_ASSIGN_OR_RETURN(fd_, OpenFile(folder_, O_TMPFILE | O_RDWR));
    return absl::OkStatus();
  }
  LOWERD_ASSIGN_OR_RETURN(fd_, OpenFile(path_, O_CREAT | O_RDWR));
  absl::Status status = RehashLocked();
  if (!status.ok()) fd_.Reset();
  return status;
}

absl::Status DiskUpload::RehashLocked() {
  sha_ = Sha256();
  size_ = 0;
  std::vector<char> buffer(kReadSize);
  while (true) {
    const ssize_t n = ::pread(fd_.get(), buffer.data(), buffer.size(), size_);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "reading an upload");
    }
    if (n == 0) break;
    sha_.Update(absl::string_view(buffer.data(), static_cast<size_t>(n)));
    size_ += n;
  }
  return absl::OkStatus();
}

int64_t DiskUpload::Acquire() {
  absl::MutexLock lock(&mutex_);
  last_use_ = absl::Now();
  return ++owner_;
}

absl::Status DiskUpload::CheckOwnerLocked(int64_t ticket) const {
  if (ticket == owner_ && !sealed_) return absl::OkStatus();
  return MakeError(Reason::kOperationState,
                   absl::StrCat("the upload of ", digest_.ToString(),
                                " has been taken over by another connection or has ended"));
}

absl::StatusOr<int64_t> DiskUpload::committed_size(int64_t ticket) const {
  absl::MutexLock lock(&mutex_);
  LOWERD_RETURN_IF_ERROR(CheckOwnerLocked(ticket));
  return size_;
}

int64_t DiskUpload::committed_size() const {
  absl::MutexLock lock(&mutex_);
  return size_;
}

absl::Time DiskUpload::last_use() const {
  absl::MutexLock lock(&mutex_);
  return last_use_;
}

absl::Status DiskUpload::WriteAndHashLocked(absl::Span<const absl::string_view> pieces,
                                            int64_t bytes) {
  Sha256& sha = sha_;
  const auto hash = [&sha, pieces] {
    for (const absl::string_view piece : pieces) sha.Update(piece);
  };
  // Who takes the hash does it: a hasher while this thread writes, or this thread if none came.
  struct Hashing {
    std::atomic<bool> taken = false;
    absl::Notification done;
  };
  const auto hashing = std::make_shared<Hashing>();
  if (bytes >= kParallelBytes) {
    hashers_.Schedule([hashing, &hash = hash] {
      if (hashing->taken.exchange(true)) return;
      hash();
      hashing->done.Notify();
    });
  }
  const absl::Status written = WritePieces(fd_.get(), pieces, size_);
  if (hashing->taken.exchange(true)) {
    hashing->done.WaitForNotification();
  } else if (written.ok()) {
    hash();
  }
  if (!written.ok()) {
    // Nothing of these bytes is kept, nor of their hash.
    [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), size_);
    LOWERD_RETURN_IF_ERROR(RehashLocked());
    return written;
  }
  size_ += bytes;
  return absl::OkStatus();
}

absl::Status DiskUpload::Append(int64_t ticket, absl::Span<const absl::string_view> pieces) {
  int64_t bytes = 0;
  for (const absl::string_view piece : pieces) bytes += static_cast<int64_t>(piece.size());
  absl::MutexLock lock(&mutex_);
  LOWERD_RETURN_IF_ERROR(CheckOwnerLocked(ticket));
  if (bytes > digest_.size_bytes() - size_) {
    return MakeError(Reason::kLimitExceeded,
                     absl::StrCat("the upload goes past its announced size of ",
                                  digest_.size_bytes(), " bytes"));
  }
  LOWERD_RETURN_IF_ERROR(WriteAndHashLocked(pieces, bytes));
  last_use_ = absl::Now();
  if (flush_early_ && size_ - flushed_ >= kFlushStep) {
    // Advice: its failure shows when the file is flushed.
    (void)::sync_file_range(fd_.get(), flushed_, size_ - flushed_, SYNC_FILE_RANGE_WRITE);
    flushed_ = size_;
  }
  return absl::OkStatus();
}

void DiskUpload::Abandon() {
  absl::MutexLock lock(&mutex_);
  sealed_ = true;
  size_ = 0;
  if (fd_.valid()) [[maybe_unused]]
    const int ignored = ::ftruncate(fd_.get(), 0);
}

absl::StatusOr<int> DiskUpload::Seal(int64_t ticket, bool fsync) {
  absl::MutexLock lock(&mutex_);
  LOWERD_RETURN_IF_ERROR(CheckOwnerLocked(ticket));
  sealed_ = true;
  if (size_ != digest_.size_bytes() || sha_.Finish() != digest_.hash()) {
    return MakeError(
        Reason::kDigestMismatch,
        absl::StrCat("the ", size_, " uploaded bytes are not those of ", digest_.ToString(),
                     "; compute the digest again and upload again"));
  }
  if (fsync && ::fdatasync(fd_.get()) != 0) return ErrnoError(errno, "flushing a blob");
  return fd_.get();
}

}  // namespace lowerd::blob
