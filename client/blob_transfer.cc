#include "client/blob_transfer.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <unistd.h>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "client/parallel.h"
#include "client/uuid.h"
#include "src/base/error.h"
#include "src/base/sha256.h"
#include "src/rpc/resource_name.h"

namespace lowerd::client {
namespace {

namespace reapi = build::bazel::remote::execution::v2;
namespace bs = google::bytestream;

constexpr int64_t kMessageBytes = 1 << 20;
// A server keeps whole messages only: over a bad connection they become smaller, down to this.
constexpr int64_t kSmallestMessageBytes = 16 << 10;
// Blobs up to this size are sent in batches when there are several.
constexpr int64_t kSmallBytes = 256 << 10;
// Room for digests and framing in a message of gRPC's default limit of 4 MiB.
constexpr int64_t kDefaultBatchBytes = int64_t{7} << 19;
// Digests in one FindMissingBlobs.
constexpr size_t kFindMissingDigests = 10000;

void SetProto(const Digest& digest, reapi::Digest& proto) {
  proto.set_hash(digest.hex());
  proto.set_size_bytes(digest.size_bytes());
}

absl::Status Protocol(absl::string_view what) {
  return MakeError(Reason::kInternalError, absl::StrCat("the server breaks the protocol: ", what));
}

}  // namespace

// Sums the progress of parallel transfers. Thread-safe.
class BlobTransfer::Meter {
 public:
  Meter(const ByteProgress& progress, int64_t total) : progress_(progress), total_(total) {}

  // `bytes` is negative when work is lost.
  void Add(int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

 private:
  const ByteProgress& progress_;
  const int64_t total_;
  absl::Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

BlobTransfer::BlobTransfer(const std::shared_ptr<grpc::Channel>& channel, Calls& calls)
    : calls_(calls),
      byte_stream_(bs::ByteStream::NewStub(channel)),
      cas_(reapi::ContentAddressableStorage::NewStub(channel)),
      capabilities_(reapi::Capabilities::NewStub(channel)) {}

absl::Duration BlobTransfer::TransferTimeout(int64_t size) const {
  const ClientOptions& options = calls_.options();
  return options.call_timeout +
         absl::Seconds(static_cast<double>(size) /
                       static_cast<double>(std::max<int64_t>(1, options.minimum_transfer_rate)));
}

int BlobTransfer::ParallelTransfers() const {
  return std::max(1, calls_.options().parallel_transfers);
}

absl::Status BlobTransfer::Upload(absl::Span<const LocalFile* const> files,
                                  const ByteProgress& progress) {
  std::map<Digest, const LocalFile*> distinct;
  for (const LocalFile* file : files) distinct.emplace(file->digest(), file);
  std::vector<Digest> digests;
  int64_t total = 0;
  for (const auto& [digest, file] : distinct) {
    digests.push_back(digest);
    total += digest.size_bytes();
  }
  Meter meter(progress, total);
  std::vector<const LocalFile*> missing;
  LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> absent, FindMissing(digests));
  for (const Digest& digest : absent) missing.push_back(distinct.at(digest));
  int64_t left = 0;
  for (const LocalFile* file : missing) left += file->digest().size_bytes();
  meter.Add(total - left);

  const auto large = std::partition(missing.begin(), missing.end(), [](const LocalFile* file) {
    return file->digest().size_bytes() <= kSmallBytes;
  });
  // A batch saves round trips only if there are several blobs to put into it.
  const auto streamed = large - missing.begin() > 1 ? large : missing.begin();
  if (streamed != missing.begin()) {
    LOWERD_RETURN_IF_ERROR(UploadBatches(
        absl::MakeSpan(missing).subspan(0, static_cast<size_t>(streamed - missing.begin())),
        meter));
  }
  return RunParallel(static_cast<int>(missing.end() - streamed), ParallelTransfers(),
                     [&](int i) { return UploadStream(*streamed[i], meter); });
}

absl::StatusOr<std::vector<Digest>> BlobTransfer::FindMissing(absl::Span<const Digest> digests) {
  std::vector<Digest> out;
  for (size_t begin = 0; begin < digests.size(); begin += kFindMissingDigests) {
    const auto part = digests.subspan(begin, kFindMissingDigests);
    reapi::FindMissingBlobsRequest request;
    request.set_instance_name(calls_.options().instance_name);
    request.set_digest_function(reapi::DigestFunction::SHA256);
    for (const Digest& digest : part) SetProto(digest, *request.add_blob_digests());
    LOWERD_ASSIGN_OR_RETURN(
        const auto response,
        RetriedCall<reapi::FindMissingBlobsResponse>(calls_, [&](auto* context, auto* message) {
          return cas_->FindMissingBlobs(context, request, message);
        }));
    std::set<Digest> absent;
    for (const reapi::Digest& proto : response.missing_blob_digests()) {
      LOWERD_ASSIGN_OR_RETURN(const Digest digest, Digest::Parse(proto.hash(), proto.size_bytes()));
      absent.insert(digest);
    }
    const size_t before = out.size();
    std::copy_if(part.begin(), part.end(), std::back_inserter(out),
                 [&](const Digest& digest) { return absent.count(digest) != 0; });
    if (out.size() - before < absent.size()) {
      return Protocol("it misses a blob that it was not asked for");
    }
  }
  return out;
}

absl::StatusOr<int64_t> BlobTransfer::MaxBatchBytes() {
  reapi::GetCapabilitiesRequest request;
  request.set_instance_name(calls_.options().instance_name);
  const auto response =
      RetriedCall<reapi::ServerCapabilities>(calls_, [&](auto* context, auto* out) {
        return capabilities_->GetCapabilities(context, request, out);
      });
  if (absl::IsUnimplemented(response.status())) return kDefaultBatchBytes;
  if (!response.ok()) return response.status();
  const int64_t limit = response->cache_capabilities().max_batch_total_size_bytes();
  return limit > 0 ? std::min(limit, kDefaultBatchBytes) : kDefaultBatchBytes;
}

absl::Status BlobTransfer::UploadBatches(absl::Span<const LocalFile* const> files, Meter& meter) {
  LOWERD_ASSIGN_OR_RETURN(const int64_t limit, MaxBatchBytes());
  std::vector<std::vector<const LocalFile*>> batches;
  std::vector<const LocalFile*> alone;
  int64_t room = 0;
  for (const LocalFile* file : files) {
    const int64_t size = file->digest().size_bytes();
    if (size > limit) {
      alone.push_back(file);
      continue;
    }
    if (batches.empty() || size > room) {
      batches.emplace_back();
      room = limit;
    }
    batches.back().push_back(file);
    room -= size;
  }
  LOWERD_RETURN_IF_ERROR(RunParallel(static_cast<int>(batches.size()), ParallelTransfers(),
                                     [&](int i) { return UploadBatch(batches[i], meter); }));
  return RunParallel(static_cast<int>(alone.size()), ParallelTransfers(),
                     [&](int i) { return UploadStream(*alone[i], meter); });
}

absl::Status BlobTransfer::UploadBatch(absl::Span<const LocalFile* const> files, Meter& meter) {
  reapi::BatchUpdateBlobsRequest request;
  request.set_instance_name(calls_.options().instance_name);
  request.set_digest_function(reapi::DigestFunction::SHA256);
  int64_t bytes = 0;
  for (const LocalFile* file : files) {
    auto* blob = request.add_requests();
    SetProto(file->digest(), *blob->mutable_digest());
    LOWERD_RETURN_IF_ERROR(file->Read(0, file->digest().size_bytes(), *blob->mutable_data()));
    bytes += file->digest().size_bytes();
  }
  LOWERD_ASSIGN_OR_RETURN(
      const auto response,
      RetriedCall<reapi::BatchUpdateBlobsResponse>(calls_, [&](auto* context, auto* out) {
        return cas_->BatchUpdateBlobs(context, request, out);
      }));
  if (response.responses_size() != request.requests_size()) {
    return Protocol("a batch of uploads is not answered for each blob");
  }
  for (const auto& one : response.responses()) {
    LOWERD_RETURN_IF_ERROR(ParseStatus(one.status().SerializeAsString()));
  }
  meter.Add(bytes);
  return absl::OkStatus();
}

absl::Status BlobTransfer::UploadStream(const LocalFile& file, Meter& meter) {
  const std::string name = rpc::ResourceName{.instance = calls_.options().instance_name,
                                             .upload_id = RandomUuid(),
                                             .digest = file.digest()}
                               .ToString();
  Backoff backoff(calls_);
  int64_t offset = 0;
  int64_t message_bytes = kMessageBytes;
  while (true) {
    if (calls_.stopped()) return Calls::StoppedError();
    const absl::Status status = WriteFrom(file, name, offset, message_bytes, meter);
    if (status.ok()) return absl::OkStatus();
    if (!backoff.TryAgain(status)) return status;
    LOWERD_ASSIGN_OR_RETURN(const int64_t committed, CommittedSize(name));
    if (committed > file.digest().size_bytes()) {
      return Protocol("it has more bytes of an upload than were sent");
    }
    if (committed > offset) {
      backoff.Reset();
    } else {
      message_bytes = std::max(message_bytes / 4, kSmallestMessageBytes);
    }
    meter.Add(committed - offset);
    offset = committed;
  }
}

absl::Status BlobTransfer::WriteFrom(const LocalFile& file, const std::string& name, int64_t offset,
                                     int64_t message_bytes, Meter& meter) {
  const int64_t size = file.digest().size_bytes();
  const int64_t begin = offset;
  CallContext context(calls_, TransferTimeout(size - offset));
  bs::WriteResponse response;
  const auto stream = byte_stream_->Write(context.get(), &response);
  bs::WriteRequest request;
  request.set_resource_name(name);
  do {
    request.set_write_offset(offset);
    const absl::Status read =
        file.Read(offset, std::min(message_bytes, size - offset), *request.mutable_data());
    if (!read.ok()) {
      context.get()->TryCancel();
      stream->Finish().ok();
      return read;
    }
    const int64_t got = static_cast<int64_t>(request.data().size());
    // A file that became shorter ends the upload early, which the server refuses by its digest.
    const bool last = got == 0 || offset + got >= size;
    request.set_finish_write(last);
    // False when the server ended the call: because it has the blob, or with an error.
    if (!stream->Write(request)) break;
    offset += got;
    meter.Add(got);
    if (last) break;
    request.clear_resource_name();
  } while (true);
  stream->WritesDone();
  absl::Status status = calls_.FromGrpc(stream->Finish());
  if (absl::IsAlreadyExists(status)) status = absl::OkStatus();
  if (!status.ok()) {
    meter.Add(begin - offset);
    return status;
  }
  // -1 is what some servers answer for a blob that they have.
  if (response.committed_size() != size && response.committed_size() != -1) {
    return Protocol(
        absl::StrCat("it kept ", response.committed_size(), " of ", size, " bytes of an upload"));
  }
  meter.Add(size - offset);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> BlobTransfer::CommittedSize(const std::string& name) {
  bs::QueryWriteStatusRequest request;
  request.set_resource_name(name);
  const auto response =
      RetriedCall<bs::QueryWriteStatusResponse>(calls_, [&](auto* context, auto* out) {
        return byte_stream_->QueryWriteStatus(context, request, out);
      });
  // The server knows nothing of the upload: nothing was kept, or it forgot it in a restart.
  if (absl::IsNotFound(response.status()) || absl::IsUnimplemented(response.status())) return 0;
  if (!response.ok()) return response.status();
  return response->committed_size();
}

absl::Status BlobTransfer::Download(absl::Span<const DownloadItem> items,
                                    const ByteProgress& progress) {
  std::vector<AtomicFile> files;
  int64_t total = 0;
  for (const DownloadItem& item : items) {
    LOWERD_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(item.path));
    files.push_back(std::move(file));
    total += item.digest.size_bytes();
  }
  Meter meter(progress, total);
  LOWERD_RETURN_IF_ERROR(
      RunParallel(static_cast<int>(items.size()), ParallelTransfers(), [&](int i) {
        const AtomicFile& file = files[i];
        return DownloadStream(items[i].digest, {file.fd(), file.path(), file.seekable()}, meter);
      }));
  for (AtomicFile& file : files) LOWERD_RETURN_IF_ERROR(file.Commit());
  return absl::OkStatus();
}

absl::Status BlobTransfer::DownloadInto(const Digest& digest, int fd) {
  const ByteProgress progress;
  Meter meter(progress, digest.size_bytes());
  return DownloadStream(digest, {fd, "a temporary file", /*seekable=*/true}, meter);
}

absl::Status BlobTransfer::DownloadStream(const Digest& digest, const Sink& sink, Meter& meter) {
  const std::string name =
      rpc::ResourceName{.instance = calls_.options().instance_name, .digest = digest}.ToString();
  Backoff backoff(calls_);
  Sha256 sha;
  int64_t offset = 0;
  bool damaged_before = false;
  while (true) {
    if (calls_.stopped()) return Calls::StoppedError();
    bs::ReadRequest request;
    request.set_resource_name(name);
    request.set_read_offset(offset);
    CallContext context(calls_, TransferTimeout(digest.size_bytes() - offset));
    const auto stream = byte_stream_->Read(context.get(), request);
    bs::ReadResponse response;
    bool too_long = false;
    absl::Status written;
    const int64_t begin = offset;
    while (written.ok() && !too_long && stream->Read(&response)) {
      const int64_t got = static_cast<int64_t>(response.data().size());
      too_long = offset + got > digest.size_bytes();
      if (too_long) break;
      written = WriteAll(sink.fd, response.data());
      sha.Update(response.data());
      offset += got;
      meter.Add(got);
    }
    if (!written.ok() || too_long) context.get()->TryCancel();
    const absl::Status status = calls_.FromGrpc(stream->Finish());
    if (!written.ok()) {
      return MakeError(Reason::kInternalError,
                       absl::StrCat("cannot write ", sink.path, ": ", written.message()));
    }
    if (!status.ok() && !too_long) {
      if (offset > begin) backoff.Reset();
      if (!backoff.TryAgain(status)) return status;
      continue;
    }
    if (!too_long && offset == digest.size_bytes() && sha.Finish() == digest.hash()) {
      return absl::OkStatus();
    }
    const absl::Status damaged = MakeError(
        Reason::kInternalError,
        absl::StrCat("the bytes received for blob ", digest.ToString(),
                     " do not have that digest; the server's store or the network is damaged"));
    if (damaged_before || !sink.seekable) return damaged;
    damaged_before = true;
    meter.Add(-offset);
    offset = 0;
    sha = Sha256();
    if (ftruncate(sink.fd, 0) != 0 || lseek(sink.fd, 0, SEEK_SET) != 0) {
      return ErrnoError(errno, absl::StrCat("cannot rewind ", sink.path));
    }
  }
}

}  // namespace lowerd::client
