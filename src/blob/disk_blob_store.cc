#include "src/blob/disk_blob_store.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <list>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/thread_pool.h"
#include "src/blob/disk_upload.h"

namespace lowerd::blob {
namespace {

constexpr size_t kReadSize = 1 << 20;
// Threads that hash while others write. What they do not come to, the writers do.
constexpr int kHashers = 4;
// Last uses are written to the disk at most so often for one blob.
constexpr absl::Duration kTouchInterval = absl::Minutes(1);
// A client that was cut off comes back within this, so that its bytes are worth more than an old
// blob.
constexpr absl::Duration kResumeGrace = absl::Minutes(10);
constexpr absl::Duration kExpiryInterval = absl::Minutes(1);

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoError(errno, absl::StrCat("creating ", path));
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    LOWERD_RETURN_IF_ERROR(MakeFolder(path.substr(0, slash)));
  }
  return MakeFolder(path);
}

absl::Status FlushFolder(const std::string& path) {
  LOWERD_ASSIGN_OR_RETURN(const Fd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
  return ::fsync(fd.get()) == 0 ? absl::OkStatus() : ErrnoError(errno, "flushing a folder");
}

// Names in a folder without . and ..
absl::StatusOr<std::vector<std::string>> List(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return ErrnoError(errno, path);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(folder);
  return names;
}

std::optional<Digest> ParseName(absl::string_view name) {
  const size_t dash = name.find('-');
  int64_t size;
  if (dash == absl::string_view::npos || !absl::SimpleAtoi(name.substr(dash + 1), &size)) {
    return std::nullopt;
  }
  auto digest = Digest::Parse(name.substr(0, dash), size);
  return digest.ok() ? std::optional<Digest>(*digest) : std::nullopt;
}

absl::StatusOr<Digest> HashFile(int fd) {
  Sha256 sha;
  int64_t size = 0;
  std::vector<char> buffer(kReadSize);
  while (true) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), size);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "reading a file");
    }
    if (n == 0) break;
    sha.Update(absl::string_view(buffer.data(), static_cast<size_t>(n)));
    size += n;
  }
  return Digest(sha.Finish(), size);
}

class DiskBlobStoreImpl final : public DiskBlobStore {
 public:
  explicit DiskBlobStoreImpl(Options options) : options_(std::move(options)) {}

  absl::Status Init() {
    LOWERD_RETURN_IF_ERROR(MakeFolders(options_.directory));
    LOWERD_ASSIGN_OR_RETURN(lock_, OpenFile(options_.directory + "/lock", O_CREAT | O_RDWR));
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      return MakeError(
          Reason::kOperationState,
          absl::StrCat("another lowerd uses ", options_.directory,
                       "; give each server a blob directory of its own, or let several "
                       "share a store (--blobs grpc://...)"));
    }
    for (const char* name : {"cas", "uploads", "quarantine", "trash"}) {
      LOWERD_RETURN_IF_ERROR(MakeFolder(absl::StrCat(options_.directory, "/", name)));
    }
    LOWERD_RETURN_IF_ERROR(ScanBlobs());
    LOWERD_RETURN_IF_ERROR(ScanUploads());
    return PutBytes(*this, "").status();
  }

  absl::StatusOr<std::vector<Digest>> FindMissing(absl::Span<const Digest> digests) override {
    std::vector<Digest> missing;
    Touches touches;
    absl::MutexLock lock(&mutex_);
    for (const Digest& digest : digests) {
      if (!UseLocked(digest, touches)) missing.push_back(digest);
    }
    return missing;
  }

  absl::StatusOr<Fd> Open(const Digest& digest) override {
    {
      Touches touches;
      absl::MutexLock lock(&mutex_);
      if (!UseLocked(digest, touches)) return MissingBlobsError({digest});
    }
    auto fd = OpenFile(PathOf(digest), O_RDONLY);
    // Evicted in between.
    if (!fd.ok() && ::access(PathOf(digest).c_str(), F_OK) != 0) {
      absl::MutexLock lock(&mutex_);
      ForgetLocked(digest);
      return MissingBlobsError({digest});
    }
    if (!fd.ok()) return fd;
    LOWERD_ASSIGN_OR_RETURN(const int64_t size, FileSize(fd->get()));
    // Cut off by a power failure without fsync, or by somebody's hand.
    if (size != digest.size_bytes()) return PutAside(digest, *fd);
    return fd;
  }

  absl::Status Verify(const Digest& digest) override {
    LOWERD_ASSIGN_OR_RETURN(const Fd fd, Open(digest));
    LOWERD_ASSIGN_OR_RETURN(const Digest actual, HashFile(fd.get()));
    return actual == digest ? absl::OkStatus() : PutAside(digest, fd);
  }

  absl::StatusOr<std::unique_ptr<BlobWriter>> StartWrite(const Digest& digest,
                                                         absl::string_view upload_id) override;

  absl::StatusOr<UploadState> QueryWrite(const Digest& digest,
                                         absl::string_view upload_id) override {
    const std::string path = UploadPath(digest, upload_id);
    {
      Touches touches;
      absl::MutexLock lock(&mutex_);
      if (UseLocked(digest, touches)) return UploadState{digest.size_bytes(), true};
      const auto found = uploads_.find(path);
      if (found != uploads_.end()) return UploadState{found->second->committed_size(), false};
    }
    struct stat st;
    if (upload_id.empty() || ::stat(path.c_str(), &st) != 0) {
      return NotFoundError("upload", upload_id);
    }
    return UploadState{st.st_size, false};
  }

  absl::StatusOr<Fd> CreateTemporary() override {
    Fd fd(::open(uploads().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    // Some file systems have no nameless files; Adopt then copies.
    if (!fd.valid()) fd = Fd(::memfd_create("lowerd", MFD_CLOEXEC));
    if (!fd.valid()) return ErrnoError(errno, "creating a temporary file");
    return fd;
  }

  absl::StatusOr<Digest> Adopt(Fd file) override {
    LOWERD_ASSIGN_OR_RETURN(const Digest digest, HashFile(file.get()));
    LOWERD_RETURN_IF_ERROR(Reserve(digest.size_bytes()));
    const absl::Status status = AdoptReserved(file, digest);
    Release(digest.size_bytes());
    if (!status.ok()) return status;
    return digest;
  }

  absl::StatusOr<std::unique_ptr<Pin>> PinAll(absl::Span<const Digest> digests) override {
    Touches touches;
    absl::MutexLock lock(&mutex_);
    std::vector<Digest> missing;
    for (const Digest& digest : digests) {
      if (!UseLocked(digest, touches)) missing.push_back(digest);
    }
    if (!missing.empty()) return MissingBlobsError(missing);
    std::vector<std::pair<Digest, int64_t>> pinned;
    for (const Digest& digest : digests) {
      Blob& blob = blobs_.at(digest);
      if (blob.pins++ == 0) pinned_bytes_ += digest.size_bytes();
      pinned.emplace_back(digest, blob.generation);
    }
    return std::make_unique<DiskPin>(*this, std::move(pinned));
  }

  Stats GetStats() const override {
    absl::MutexLock lock(&mutex_);
    return {static_cast<int64_t>(blobs_.size()), bytes_, options_.limit_bytes, evictions_,
            evicted_bytes_};
  }

  int64_t quarantined() const override {
    absl::MutexLock lock(&mutex_);
    return quarantined_;
  }

 private:
  friend class DiskBlobWriter;

  struct Blob {
    // In recency_; the front was used last.
    std::list<Digest>::iterator place;
    int pins = 0;
    absl::Time touched;
    // Tells a blob from one of the same digest that was put aside before, whose pins may still
    // live.
    int64_t generation = 0;
  };

  // An upload that nobody writes to now. Its bytes are on the disk, for a client that comes back.
  struct IdleUpload {
    int64_t size = 0;
    absl::Time last_use;
  };

  // Last uses to be written to the disk. Declared before the lock, it does so without it.
  class Touches {
   public:
    ~Touches() {
      for (const std::string& path : paths_) ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
    }
    void Add(std::string path) { paths_.push_back(std::move(path)); }

   private:
    std::vector<std::string> paths_;
  };

  // Files to be deleted: that takes its time for big ones. Declared before the lock as well.
  class Trash {
   public:
    ~Trash() {
      for (const std::string& path : paths_) ::unlink(path.c_str());
    }
    void Add(std::string path) { paths_.push_back(std::move(path)); }

   private:
    std::vector<std::string> paths_;
  };

  class DiskPin final : public Pin {
   public:
    DiskPin(DiskBlobStoreImpl& store, std::vector<std::pair<Digest, int64_t>> pinned)
        : store_(store), pinned_(std::move(pinned)) {}
    ~DiskPin() override {
      absl::MutexLock lock(&store_.mutex_);
      for (const auto& [digest, generation] : pinned_) {
        const auto found = store_.blobs_.find(digest);
        if (found != store_.blobs_.end() && found->second.generation == generation) {
          if (--found->second.pins == 0) store_.pinned_bytes_ -= digest.size_bytes();
        }
      }
    }

   private:
    DiskBlobStoreImpl& store_;
    const std::vector<std::pair<Digest, int64_t>> pinned_;
  };

  std::string cas() const { return options_.directory + "/cas"; }
  std::string trash() const { return options_.directory + "/trash"; }
  std::string uploads() const { return options_.directory + "/uploads"; }
  std::string FolderOf(const Digest& digest) const {
    return absl::StrCat(cas(), "/", digest.hex().substr(0, 2));
  }
  std::string PathOf(const Digest& digest) const {
    return absl::StrCat(FolderOf(digest), "/", digest.hex(), "-", digest.size_bytes());
  }
  // The client's id may hold anything, so its hash stands in the name.
  std::string UploadPath(const Digest& digest, absl::string_view upload_id) const {
    return absl::StrCat(uploads(), "/", digest.hex(), "-", digest.size_bytes(), "-",
                        Digest::Of(upload_id).hex().substr(0, 32));
  }

  absl::Status ScanBlobs() {
    absl::MutexLock lock(&mutex_);
    std::vector<std::pair<absl::Time, Digest>> found;
    LOWERD_ASSIGN_OR_RETURN(const std::vector<std::string> folders, List(cas()));
    for (const std::string& folder : folders) {
      const std::string folder_path = absl::StrCat(cas(), "/", folder);
      struct stat folder_st = {};
      if (::stat(folder_path.c_str(), &folder_st) == 0 && !S_ISDIR(folder_st.st_mode)) {
        LOWERD_RETURN_IF_ERROR(Quarantine(folder_path, folder));
        continue;
      }
      LOWERD_ASSIGN_OR_RETURN(const std::vector<std::string> names, List(folder_path));
      for (const std::string& name : names) {
        const std::string path = absl::StrCat(cas(), "/", folder, "/", name);
        const std::optional<Digest> digest = ParseName(name);
        struct stat st = {};
        // Only who evicts needs to know when blobs were used.
        const bool usable = digest.has_value() && PathOf(*digest) == path &&
                            (options_.limit_bytes == 0 || (::stat(path.c_str(), &st) == 0 &&
                                                           st.st_size == digest->size_bytes()));
        if (usable) {
          found.emplace_back(absl::TimeFromTimespec(st.st_mtim), *digest);
          continue;
        }
        LOWERD_RETURN_IF_ERROR(Quarantine(path, name));
      }
    }
    std::sort(found.begin(), found.end());
    for (const auto& [used, digest] : found) AddLocked(digest, used);
    return absl::OkStatus();
  }

  // `file`, which is stored under the digest, is something else.
  absl::Status PutAside(const Digest& digest, const Fd& file) {
    absl::MutexLock lock(&mutex_);
    struct stat seen = {};
    struct stat now = {};
    // An upload may have put a good file into its place by now.
    if (::fstat(file.get(), &seen) != 0 || ::stat(PathOf(digest).c_str(), &now) != 0 ||
        seen.st_ino != now.st_ino) {
      return MissingBlobsError({digest});
    }
    LOWERD_RETURN_IF_ERROR(Quarantine(PathOf(digest), digest.hex()));
    ForgetLocked(digest);
    return MissingBlobsError({digest});
  }

  absl::Status Quarantine(const std::string& path, const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string aside = absl::StrCat(options_.directory, "/quarantine/", name);
    if (::rename(path.c_str(), aside.c_str()) != 0) return ErrnoError(errno, path);
    ++quarantined_;
    return absl::OkStatus();
  }

  // What an earlier process left: uploads to go on with, and files it did not come to delete.
  absl::Status ScanUploads() {
    absl::MutexLock lock(&mutex_);
    LOWERD_ASSIGN_OR_RETURN(const std::vector<std::string> names, List(uploads()));
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(uploads(), "/", name);
      struct stat st;
      if (::stat(path.c_str(), &st) != 0) continue;
      AddIdleLocked(path, {st.st_size, absl::TimeFromTimespec(st.st_mtim)});
    }
    LOWERD_ASSIGN_OR_RETURN(const std::vector<std::string> leftovers, List(trash()));
    for (const std::string& name : leftovers) ::unlink(absl::StrCat(trash(), "/", name).c_str());
    return absl::OkStatus();
  }

  void AddIdleLocked(const std::string& path, const IdleUpload& upload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (idle_.emplace(path, upload).second) idle_bytes_ += upload.size;
  }

  void ForgetIdleLocked(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = idle_.find(path);
    if (found == idle_.end()) return;
    idle_bytes_ -= found->second.size;
    idle_.erase(found);
  }

  // Out of the way at once, deleted a little later; its name may be used again in between.
  void DiscardLocked(const std::string& path, Trash& trash_files)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string aside = absl::StrCat(trash(), "/", ++trash_number_);
    if (::rename(path.c_str(), aside.c_str()) == 0) trash_files.Add(aside);
  }

  // Idle uploads that were last written to before `time`, oldest first, until `enough`.
  template <typename Enough>
  void DropIdleLocked(absl::Time time, const Enough& enough, Trash& trash_files)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<std::pair<absl::Time, std::string>> oldest;
    for (const auto& [path, upload] : idle_) {
      if (upload.last_use < time) oldest.emplace_back(upload.last_use, path);
    }
    std::sort(oldest.begin(), oldest.end());
    for (const auto& [last_use, path] : oldest) {
      if (enough()) return;
      ForgetIdleLocked(path);
      DiscardLocked(path, trash_files);
    }
  }

  // After a write that the disk had no room for. False if there was nothing to drop.
  bool DropAllIdle() {
    Trash trash_files;
    absl::MutexLock lock(&mutex_);
    if (idle_.empty()) return false;
    DropIdleLocked(
        absl::InfiniteFuture(), [] { return false; }, trash_files);
    return true;
  }

  void AddLocked(const Digest& digest, absl::Time used) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (blobs_.contains(digest)) return;
    recency_.push_front(digest);
    blobs_.emplace(digest, Blob{recency_.begin(), 0, used, ++generation_});
    bytes_ += digest.size_bytes();
  }

  void ForgetLocked(const Digest& digest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = blobs_.find(digest);
    if (found == blobs_.end()) return;
    recency_.erase(found->second.place);
    bytes_ -= digest.size_bytes();
    if (found->second.pins > 0) pinned_bytes_ -= digest.size_bytes();
    blobs_.erase(found);
  }

  // False if the blob is not here; else it counts as used now.
  bool UseLocked(const Digest& digest, Touches& touches) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = blobs_.find(digest);
    if (found == blobs_.end()) return false;
    recency_.splice(recency_.begin(), recency_, found->second.place);
    if (options_.limit_bytes != 0) {
      const absl::Time now = absl::Now();
      if (now - found->second.touched > kTouchInterval) {
        found->second.touched = now;
        touches.Add(PathOf(digest));
      }
    }
    return true;
  }

  absl::Status NoRoom(int64_t size) const {
    return MakeError(Reason::kStoreFull,
                     absl::StrCat("the blob store has no room for ", size, " bytes: its limit is ",
                                  options_.limit_bytes, " and the rest is in use"));
  }

  // Makes room for `size` bytes on top of what is here and reserved.
  absl::Status Reserve(int64_t size) {
    if (size > options_.max_blob_bytes) {
      return MakeError(Reason::kLimitExceeded,
                       absl::StrCat("a blob of ", size, " bytes is over this server's limit of ",
                                    options_.max_blob_bytes, " (lowerd --max-blob)"));
    }
    Trash trash_files;
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    if (now >= next_expiry_) {
      next_expiry_ = now + kExpiryInterval;
      DropIdleLocked(
          now - options_.upload_expiry, [] { return false; }, trash_files);
    }
    if (options_.limit_bytes != 0) {
      // Nothing is evicted for what cannot fit anyway.
      if (pinned_bytes_ + reserved_ + size > options_.limit_bytes) return NoRoom(size);
      const auto fits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return bytes_ + idle_bytes_ + reserved_ + size <= options_.limit_bytes;
      };
      DropIdleLocked(now - kResumeGrace, fits, trash_files);
      auto at = recency_.end();
      while (!fits() && at != recency_.begin()) {
        --at;
        if (blobs_.at(*at).pins > 0 || at->size_bytes() == 0) continue;
        const Digest victim = *at;
        ++at;
        DiscardLocked(PathOf(victim), trash_files);
        ForgetLocked(victim);
        ++evictions_;
        evicted_bytes_ += victim.size_bytes();
      }
      DropIdleLocked(absl::InfiniteFuture(), fits, trash_files);
      if (!fits()) return NoRoom(size);
    }
    reserved_ += size;
    return absl::OkStatus();
  }

  // The last writer of an upload closes its file; who comes back opens it again.
  void Leave(const std::shared_ptr<DiskUpload>& upload) {
    absl::MutexLock lock(&mutex_);
    const auto found = uploads_.find(upload->path());
    if (found == uploads_.end() || found->second != upload) return;
    // One reference is the map's, one the caller's; new ones are taken under the lock only.
    if (upload.use_count() > 2) return;
    uploads_.erase(found);
    const int64_t size = upload->committed_size();
    if (size > 0) {
      AddIdleLocked(upload->path(), {size, absl::Now()});
    } else {
      // Under the lock, so that nobody opens it now.
      ::unlink(upload->path().c_str());
    }
  }

  // Gives up an upload that the disk has no room for.
  void Discard(const std::shared_ptr<DiskUpload>& upload) {
    Trash trash_files;
    absl::MutexLock lock(&mutex_);
    const auto found = uploads_.find(upload->path());
    if (found != uploads_.end() && found->second == upload) {
      uploads_.erase(found);
      DiscardLocked(upload->path(), trash_files);
    }
    upload->Abandon();
  }

  void Release(int64_t size) {
    absl::MutexLock lock(&mutex_);
    reserved_ -= size;
  }

  absl::Status AdoptReserved(const Fd& file, const Digest& digest) {
    if (options_.fsync && ::fdatasync(file.get()) != 0 && errno != EINVAL) {
      return ErrnoError(errno, "flushing a blob");
    }
    absl::Status status = Publish(file.get(), "", digest);
    if (status.ok() || HasReason(status, Reason::kStoreFull)) return status;
    // Not a file of this file system: copy it.
    LOWERD_ASSIGN_OR_RETURN(const std::unique_ptr<BlobWriter> writer, StartWrite(digest, ""));
    std::vector<char> buffer(kReadSize);
    for (int64_t offset = 0; offset < digest.size_bytes();) {
      const ssize_t n = ::pread(file.get(), buffer.data(), buffer.size(), offset);
      if (n <= 0) return ErrnoError(n < 0 ? errno : EIO, "reading a temporary file");
      LOWERD_RETURN_IF_ERROR(
          writer->Append(absl::string_view(buffer.data(), static_cast<size_t>(n))));
      offset += n;
    }
    return writer->Commit();
  }

  // Gives a complete, flushed file its name in cas/: by renaming `path`, or by linking the nameless
  // `fd`.
  absl::Status Publish(int fd, const std::string& path, const Digest& digest) {
    const std::string target = PathOf(digest);
    // An older copy must not be evicted while the new file takes its name, which would go with it.
    const auto guard = PinAll({digest});
    auto give_name = [&] {
      return path.empty() ? ::linkat(AT_FDCWD, absl::StrCat("/proc/self/fd/", fd).c_str(), AT_FDCWD,
                                     target.c_str(), AT_SYMLINK_FOLLOW)
                          : ::rename(path.c_str(), target.c_str());
    };
    int result = give_name();
    if (result != 0 && errno == ENOENT) {
      // The first blob of its folder; another thread may just be making it too.
      LOWERD_RETURN_IF_ERROR(MakeFolder(FolderOf(digest)));
      if (options_.fsync) LOWERD_RETURN_IF_ERROR(FlushFolder(cas()));
      result = give_name();
    }
    if (result != 0 && errno == EEXIST) {
      // Takes the place of the one that is there, whose bytes may have been damaged since.
      std::string aside;
      {
        absl::MutexLock lock(&mutex_);
        aside = absl::StrCat(trash(), "/", ++trash_number_);
      }
      result = ::linkat(AT_FDCWD, absl::StrCat("/proc/self/fd/", fd).c_str(), AT_FDCWD,
                        aside.c_str(), AT_SYMLINK_FOLLOW);
      if (result == 0) result = ::rename(aside.c_str(), target.c_str());
    }
    if (result != 0) return ErrnoError(errno, "publishing a blob");
    ::fchmod(fd, 0400);
    if (options_.fsync) LOWERD_RETURN_IF_ERROR(FlushFolder(FolderOf(digest)));
    Touches touches;
    absl::MutexLock lock(&mutex_);
    AddLocked(digest, absl::Now());
    UseLocked(digest, touches);
    return absl::OkStatus();
  }

  const Options options_;
  ThreadPool hashers_{kHashers};
  // Held as long as the store is open, so that no second process opens it.
  Fd lock_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Digest, Blob> blobs_ ABSL_GUARDED_BY(mutex_);
  std::list<Digest> recency_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of blobs that somebody pins.
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of uploads and adoptions under way.
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t quarantined_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evictions_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evicted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // By path.
  absl::flat_hash_map<std::string, IdleUpload> idle_ ABSL_GUARDED_BY(mutex_);
  int64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time next_expiry_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t trash_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  // By path; they outlive their writers, so that a client that comes back need not wait for a hash.
  absl::flat_hash_map<std::string, std::shared_ptr<DiskUpload>> uploads_ ABSL_GUARDED_BY(mutex_);
};

class DiskBlobWriter final : public BlobWriter {
 public:
  DiskBlobWriter(DiskBlobStoreImpl& store, std::shared_ptr<DiskUpload> upload, int64_t reserved)
      : store_(store),
        upload_(std::move(upload)),
        ticket_(upload_->Acquire()),
        reserved_(reserved) {}
  ~DiskBlobWriter() override {
    store_.Leave(upload_);
    store_.Release(reserved_);
  }

  int64_t committed_size() const override { return upload_->committed_size(); }
  absl::Status AppendAll(absl::Span<const absl::string_view> pieces) override {
    absl::Status status = upload_->Append(ticket_, pieces);
    if (HasReason(status, Reason::kStoreFull) && store_.DropAllIdle()) {
      status = upload_->Append(ticket_, pieces);
    }
    // Its bytes would fill the disk for everybody, and going on later would meet the same.
    if (HasReason(status, Reason::kStoreFull)) store_.Discard(upload_);
    return status;
  }

  absl::Status Commit() override {
    const auto fd = upload_->Seal(ticket_, store_.options_.fsync);
    const absl::Status status =
        fd.ok() ? store_.Publish(*fd, upload_->path(), upload_->digest()) : fd.status();
    const bool ours = !HasReason(status, Reason::kOperationState);
    if (ours && !upload_->path().empty()) {
      absl::MutexLock lock(&store_.mutex_);
      const auto found = store_.uploads_.find(upload_->path());
      if (found != store_.uploads_.end() && found->second == upload_) store_.uploads_.erase(found);
      if (!status.ok()) ::unlink(upload_->path().c_str());
    }
    return status;
  }

 private:
  DiskBlobStoreImpl& store_;
  const std::shared_ptr<DiskUpload> upload_;
  const int64_t ticket_;
  const int64_t reserved_;
};

absl::StatusOr<std::unique_ptr<BlobWriter>> DiskBlobStoreImpl::StartWrite(
    const Digest& digest, absl::string_view upload_id) {
  LOWERD_RETURN_IF_ERROR(Reserve(digest.size_bytes()));
  const std::string path = upload_id.empty() ? "" : UploadPath(digest, upload_id);
  std::shared_ptr<DiskUpload> upload =
      std::make_shared<DiskUpload>(digest, path, uploads(), options_.fsync, hashers_);
  if (!path.empty()) {
    // All connections of one upload agree on one object before any of them opens the file.
    absl::MutexLock lock(&mutex_);
    upload = uploads_.emplace(path, upload).first->second;
    ForgetIdleLocked(path);
  }
  if (absl::Status status = upload->EnsureOpen(); !status.ok()) {
    Leave(upload);
    Release(digest.size_bytes());
    return status;
  }
  return std::make_unique<DiskBlobWriter>(*this, std::move(upload), digest.size_bytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskBlobStore>> DiskBlobStore::Create(Options options) {
  auto store = std::make_unique<DiskBlobStoreImpl>(std::move(options));
  LOWERD_RETURN_IF_ERROR(store->Init());
  return store;
}

}  // namespace lowerd::blob
