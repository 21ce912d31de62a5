#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "client/client_options.h"
#include "src/blob/blob_store.h"
#include "src/blob/disk_blob_store.h"

namespace lowerd::server {

// Blobs in any REAPI content-addressable storage, such as the one a build farm has already, or
// another lowerd. Replicas that share it share each other's blobs.
//
// A blob is here when the remote store has it; uploads and artifacts are acknowledged when the
// remote store has acknowledged them. What jobs read or make also stays in a local cache on disk,
// within its limit, from which they map it. Calls go over the network, are tried again while the
// remote store is away for a moment, and then say SERVER_UNAVAILABLE.
//
// REAPI has no pins: a pin keeps a blob in the cache, and asking for a blob makes it recently used
// in the remote store, which evicts by its own rules. A blob that went away there is BLOB_MISSING,
// which makes a cached result a miss and asks a client to upload again.
class RemoteBlobStore final : public blob::BlobStore {
 public:
  struct Options {
    client::ClientOptions remote;
    // `limit_bytes` bounds the cache; `max_blob_bytes` holds for the remote store too.
    blob::DiskBlobStore::Options cache;
  };

  // Opens the cache; the remote store is first called when it is needed.
  static absl::StatusOr<std::unique_ptr<RemoteBlobStore>> Create(const Options& options);
  ~RemoteBlobStore() override;

  absl::StatusOr<std::vector<Digest>> FindMissing(absl::Span<const Digest> digests) override;
  absl::StatusOr<Fd> Open(const Digest& digest) override;
  absl::StatusOr<std::unique_ptr<blob::BlobWriter>> StartWrite(
      const Digest& digest, absl::string_view upload_id) override;
  absl::StatusOr<UploadState> QueryWrite(const Digest& digest,
                                         absl::string_view upload_id) override;
  absl::StatusOr<Fd> CreateTemporary() override;
  absl::StatusOr<Digest> Adopt(Fd file) override;
  absl::StatusOr<std::unique_ptr<blob::Pin>> PinAll(absl::Span<const Digest> digests) override;
  absl::Status Verify(const Digest& digest) override;
  bool local() const override { return false; }
  // Of the cache.
  Stats GetStats() const override;

 private:
  class Writer;
  struct Remote;

  RemoteBlobStore(std::unique_ptr<Remote> remote, std::unique_ptr<blob::DiskBlobStore> cache);

  // Brings a blob of the cache to the remote store, unless it is there.
  absl::Status Push(const Digest& digest);
  // Brings a blob of the remote store to the cache.
  absl::Status Fetch(const Digest& digest);

  const std::unique_ptr<Remote> remote_;
  const std::unique_ptr<blob::DiskBlobStore> cache_;
};

}  // namespace lowerd::server
