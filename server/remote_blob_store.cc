#include "server/remote_blob_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/blob_transfer.h"
#include "client/calls.h"
#include "client/channel.h"
#include "client/local_file.h"
#include "src/base/error.h"

namespace lowerd::server {

struct RemoteBlobStore::Remote {
  Remote(const client::ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
      : calls(options, channel), transfer(channel, calls) {}

  // Says which of the two servers is meant.
  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    absl::Status out(status.code(),
                     absl::StrCat("blob store ", calls.options().server, ": ", status.message()));
    status.ForEachPayload(
        [&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
    return out;
  }

  client::Calls calls;
  client::BlobTransfer transfer;
};

// Collects in the cache and hands on when complete.
class RemoteBlobStore::Writer final : public blob::BlobWriter {
 public:
  Writer(RemoteBlobStore& store, const Digest& digest, std::unique_ptr<blob::BlobWriter> local)
      : store_(store), digest_(digest), local_(std::move(local)) {}

  int64_t committed_size() const override { return local_->committed_size(); }
  absl::Status AppendAll(absl::Span<const absl::string_view> pieces) override {
    return local_->AppendAll(pieces);
  }
  absl::Status Commit() override {
    LOWERD_RETURN_IF_ERROR(local_->Commit());
    return store_.Push(digest_);
  }

 private:
  RemoteBlobStore& store_;
  const Digest digest_;
  const std::unique_ptr<blob::BlobWriter> local_;
};

RemoteBlobStore::RemoteBlobStore(std::unique_ptr<Remote> remote,
                                 std::unique_ptr<blob::DiskBlobStore> cache)
    : remote_(std::move(remote)), cache_(std::move(cache)) {}

RemoteBlobStore::~RemoteBlobStore() = default;

absl::StatusOr<std::unique_ptr<RemoteBlobStore>> RemoteBlobStore::Create(const Options& options) {
  LOWERD_ASSIGN_OR_RETURN(std::unique_ptr<blob::DiskBlobStore> cache,
                          blob::DiskBlobStore::Create(options.cache));
  LOWERD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                          client::CreateChannel(options.remote));
  return std::unique_ptr<RemoteBlobStore>(
      new RemoteBlobStore(std::make_unique<Remote>(options.remote, channel), std::move(cache)));
}

absl::StatusOr<std::vector<Digest>> RemoteBlobStore::FindMissing(absl::Span<const Digest> digests) {
  auto missing = remote_->transfer.FindMissing(digests);
  if (!missing.ok()) return remote_->Named(missing.status());
  // REAPI: the empty blob always exists, though not every server knows.
  std::erase_if(*missing, [](const Digest& digest) { return digest.size_bytes() == 0; });
  return missing;
}

absl::StatusOr<Fd> RemoteBlobStore::Open(const Digest& digest) {
  auto fd = cache_->Open(digest);
  if (!HasReason(fd.status(), Reason::kBlobMissing)) return fd;
  LOWERD_RETURN_IF_ERROR(Fetch(digest));
  return cache_->Open(digest);
}

absl::Status RemoteBlobStore::Fetch(const Digest& digest) {
  LOWERD_ASSIGN_OR_RETURN(Fd file, cache_->CreateTemporary());
  const absl::Status fetched = remote_->transfer.DownloadInto(digest, file.get());
  if (absl::IsNotFound(fetched)) return MissingBlobsError({digest});
  if (!fetched.ok()) return remote_->Named(fetched);
  return cache_->Adopt(std::move(file)).status();
}

absl::Status RemoteBlobStore::Push(const Digest& digest) {
  LOWERD_ASSIGN_OR_RETURN(Fd fd, cache_->Open(digest));
  const auto file = client::LocalFile::WithDigest(digest.ToString(), std::move(fd), digest);
  return remote_->Named(remote_->transfer.Upload({&file}));
}

absl::StatusOr<std::unique_ptr<blob::BlobWriter>> RemoteBlobStore::StartWrite(
    const Digest& digest, absl::string_view upload_id) {
  LOWERD_ASSIGN_OR_RETURN(std::unique_ptr<blob::BlobWriter> local,
                          cache_->StartWrite(digest, upload_id));
  return std::make_unique<Writer>(*this, digest, std::move(local));
}

absl::StatusOr<blob::BlobStore::UploadState> RemoteBlobStore::QueryWrite(
    const Digest& digest, absl::string_view upload_id) {
  const auto state = cache_->QueryWrite(digest, upload_id);
  if (HasReason(state.status(), Reason::kResourceNotFound)) {
    LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> missing, FindMissing({digest}));
    if (missing.empty()) return UploadState{digest.size_bytes(), true};
  }
  // Complete here, but perhaps not handed on when the connection broke.
  if (state.ok() && state->complete) LOWERD_RETURN_IF_ERROR(Push(digest));
  return state;
}

absl::StatusOr<Fd> RemoteBlobStore::CreateTemporary() { return cache_->CreateTemporary(); }

absl::StatusOr<Digest> RemoteBlobStore::Adopt(Fd file) {
  LOWERD_ASSIGN_OR_RETURN(Digest digest, cache_->Adopt(std::move(file)));
  LOWERD_RETURN_IF_ERROR(Push(digest));
  return digest;
}

absl::StatusOr<std::unique_ptr<blob::Pin>> RemoteBlobStore::PinAll(
    absl::Span<const Digest> digests) {
  LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> missing, FindMissing(digests));
  if (!missing.empty()) return MissingBlobsError(missing);
  LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> uncached, cache_->FindMissing(digests));
  std::vector<Digest> cached(digests.begin(), digests.end());
  std::erase_if(cached, [&](const Digest& digest) {
    return std::find(uncached.begin(), uncached.end(), digest) != uncached.end();
  });
  auto pin = cache_->PinAll(cached);
  // One that the cache evicts at this moment is fetched when it is opened.
  return HasReason(pin.status(), Reason::kBlobMissing) ? cache_->PinAll({}) : std::move(pin);
}

absl::Status RemoteBlobStore::Verify(const Digest& digest) {
  const absl::Status status = cache_->Verify(digest);
  // What is not cached, or not any more, is verified when it is fetched.
  return HasReason(status, Reason::kBlobMissing) ? Fetch(digest) : status;
}

blob::BlobStore::Stats RemoteBlobStore::GetStats() const { return cache_->GetStats(); }

}  // namespace lowerd::server
