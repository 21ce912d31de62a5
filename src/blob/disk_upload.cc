#include "src/blob/disk_upload.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "src/base/error.h"

namespace lowerd::blob {
namespace {

constexpr size_t kReadSize = 1 << 20;
// The final flush is short if most has been written back before.
constexpr int64_t kFlushStep = 8 << 20;

}  // namespace

absl::Status DiskUpload::EnsureOpen() {
  absl::MutexLock lock(&mutex_);
  if (fd_.valid()) return absl::OkStatus();
  if (path_.empty()) {
    LOWERD_ASSIGN_OR_RETURN(fd_, OpenFile(folder_, O_TMPFILE | O_RDWR));
    return absl::OkStatus();
  }
  LOWERD_ASSIGN_OR_RETURN(Fd fd, OpenFile(path_, O_CREAT | O_RDWR));
  std::vector<char> buffer(kReadSize);
  while (true) {
    const ssize_t n = ::pread(fd.get(), buffer.data(), buffer.size(), size_);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "reading an upload");
    }
    if (n == 0) break;
    sha_.Update(absl::string_view(buffer.data(), static_cast<size_t>(n)));
    size_ += n;
  }
  fd_ = std::move(fd);
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

absl::Status DiskUpload::Append(int64_t ticket, absl::string_view bytes) {
  absl::MutexLock lock(&mutex_);
  LOWERD_RETURN_IF_ERROR(CheckOwnerLocked(ticket));
  if (static_cast<int64_t>(bytes.size()) > digest_.size_bytes() - size_) {
    return MakeError(Reason::kLimitExceeded,
                     absl::StrCat("the upload goes past its announced size of ",
                                  digest_.size_bytes(), " bytes"));
  }
  if (absl::Status status = WriteAllAt(fd_.get(), bytes, size_); !status.ok()) {
    // Nothing of these bytes is kept.
    [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), size_);
    return status;
  }
  sha_.Update(bytes);
  size_ += static_cast<int64_t>(bytes.size());
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
