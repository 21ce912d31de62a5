#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "src/base/digest.h"
#include "src/base/fd.h"

namespace lowerd::blob {

// A blob on its way in. Not thread-safe; its owner appends from one thread at a time. Destroying it
// before Commit keeps what was appended if the upload has an id (see BlobStore::Resume), else
// discards it.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;

  // Bytes kept so far (of the uncompressed blob).
  virtual int64_t committed_size() const = 0;
  // Appends them, one after the other, at committed_size(). Hashes as it goes. LIMIT_EXCEEDED if
  // this goes past the announced size, STORE_FULL if there is no room; nothing of `pieces` is then
  // kept.
  virtual absl::Status AppendAll(absl::Span<const absl::string_view> pieces) = 0;
  absl::Status Append(absl::string_view bytes) { return AppendAll({bytes}); }
  // Ends the upload: DIGEST_MISMATCH (and everything discarded) if size or SHA-256 differ from the
  // announced digest; else the blob is complete, durable and visible.
  virtual absl::Status Commit() = 0;
};

// Keeps the blob from being evicted while it lives. Movable, destroyable from any thread.
class Pin {
 public:
  virtual ~Pin() = default;
};

// Content-addressed blobs. A blob is visible only when complete, verified and durable; bytes are
// never changed afterwards. The empty blob always exists. Thread-safe; calls may block on I/O, so
// gRPC reactors hand them to a thread.
class BlobStore {
 public:
  virtual ~BlobStore() = default;

  // Those of `digests` that are not here, in order. Marks the others as used now.
  virtual absl::StatusOr<std::vector<Digest>> FindMissing(absl::Span<const Digest> digests) = 0;

  // A read-only descriptor of the whole blob, positioned anywhere (use pread or mmap); stays
  // readable even if the blob is evicted. BLOB_MISSING if it is not here. Marks it as used.
  virtual absl::StatusOr<Fd> Open(const Digest& digest) = 0;

  // Starts a new upload or resumes the one with this id and digest. `upload_id` may be empty: the
  // upload cannot be resumed then. FAILED_PRECONDITION (OPERATION_STATE) if another writer of that
  // id is alive.
  virtual absl::StatusOr<std::unique_ptr<BlobWriter>> StartWrite(const Digest& digest,
                                                                 absl::string_view upload_id) = 0;

  struct UploadState {
    int64_t committed_size = 0;
    bool complete = false;
  };
  // What StartWrite with this id would resume at; complete if the blob is here;
  // RESOURCE_NOT_FOUND if neither.
  virtual absl::StatusOr<UploadState> QueryWrite(const Digest& digest,
                                                 absl::string_view upload_id) = 0;

  // An empty file, open for reading and writing, on the store's own file system where it has one,
  // so that Adopt need not copy. It has no name and is gone when the descriptor closes.
  virtual absl::StatusOr<Fd> CreateTemporary() = 0;
  // Makes the file's bytes a blob: hashes them, makes them durable and visible. Nobody may hold a
  // writable descriptor or mapping of it but the caller.
  virtual absl::StatusOr<Digest> Adopt(Fd file) = 0;

  // Reads the whole blob here: BLOB_MISSING, and it is put aside, if it does not have its digest
  // any more (a damaged disk). For when a job fails in a way that damage would explain.
  virtual absl::Status Verify(const Digest& digest) = 0;

  // Keeps these blobs while the pin lives; BLOB_MISSING (naming all that are absent) and no pin if
  // any is not here.
  virtual absl::StatusOr<std::unique_ptr<Pin>> PinAll(absl::Span<const Digest> digests) = 0;

  // Whether FindMissing answers from memory, so that it may be called where nothing may block.
  virtual bool local() const { return true; }

  struct Stats {
    int64_t blobs = 0;
    int64_t bytes = 0;
    // 0 is no limit.
    int64_t limit_bytes = 0;
    // Blobs and their bytes that had to go to make room, since the start.
    int64_t evictions = 0;
    int64_t evicted_bytes = 0;
  };
  virtual Stats GetStats() const = 0;
};

// Stores small bytes as a blob in one call.
absl::StatusOr<Digest> PutBytes(BlobStore& store, absl::string_view bytes);
// Reads a blob of at most `limit` bytes.
absl::StatusOr<std::string> GetBytes(BlobStore& store, const Digest& digest, int64_t limit);

}  // namespace lowerd::blob
