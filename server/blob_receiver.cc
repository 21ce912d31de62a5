#include "server/blob_receiver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/bytestream/bytestream.pb.h"
#include "grpcpp/support/slice.h"

#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

// Bytes above which no more are received while others are stored. It keeps network and disk both
// busy, however small the messages.
constexpr size_t kMaxQueuedBytes = 1 << 20;
// Bytes after which a stream gives its thread to others that wait for one.
constexpr size_t kTurnBytes = 4 << 20;

}  // namespace

BlobReceiver::BlobReceiver(blob::BlobStore& blobs, ThreadPool& pool, TransferCounts& transfers,
                           std::unique_ptr<StallWatch::Stream> stall, ClientLimits::Place place,
                           grpc::ByteBuffer& response)
    : blobs_(blobs),
      pool_(pool),
      transfers_(transfers),
      response_(response),
      stall_(std::move(stall)),
      place_(std::move(place)) {
  absl::MutexLock lock(&mutex_);
  StartReadLocked();
}

void BlobReceiver::StartReadLocked() {
  reading_ = true;
  stall_->Await();
  StartRead(&incoming_);
}

void BlobReceiver::OnReadDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  reading_ = false;
  stall_->Resume();
  if (ok && !result_.has_value()) {
    queue_.emplace_back();
    queue_.back().Swap(&incoming_);
    queued_bytes_ += queue_.back().Length();
    if (queued_bytes_ <= kMaxQueuedBytes) StartReadLocked();
  } else {
    closed_ = true;
  }
  // After the end nobody may use this object but gRPC.
  if (!working_ && !finished_) {
    working_ = true;
    pool_.Schedule([this] { Work(); });
  }
}

void BlobReceiver::OnCancel() {
  // The pending read fails then, and the work sees the end of the stream.
}

void BlobReceiver::OnDone() { delete this; }

void BlobReceiver::Work() {
  size_t turn_bytes = 0;
  while (true) {
    if (turn_bytes >= kTurnBytes) {
      pool_.Schedule([this] { Work(); });
      return;
    }
    grpc::ByteBuffer message;
    {
      absl::MutexLock lock(&mutex_);
      if (result_.has_value()) {
        finished_ = true;
        break;
      }
      if (queue_.empty() && !closed_) {
        working_ = false;
        return;
      }
      if (queue_.empty()) {
        // What was appended is kept for the client to come back to.
        result_ = MakeError(Reason::kOperationCancelled,
                            "the upload ended before finish_write; go on at QueryWriteStatus' "
                            "committed_size");
        continue;
      }
      message.Swap(&queue_.front());
      queue_.pop_front();
      turn_bytes += message.Length();
      queued_bytes_ -= message.Length();
      if (!reading_ && !closed_ && queued_bytes_ <= kMaxQueuedBytes) StartReadLocked();
    }
    const auto taken = Take(message);
    if (!taken.ok()) {
      End(taken.status(), 0);
    } else if (taken->has_value()) {
      End(absl::OkStatus(), **taken);
    }
  }
  // Without the lock, as OnDone may delete this object at once. Nobody changes the result any more.
  Finish(rpc::ToGrpc(WithReason(FinalResult())));
}

absl::Status BlobReceiver::FinalResult() {
  absl::MutexLock lock(&mutex_);
  return *result_;
}

absl::StatusOr<std::optional<int64_t>> BlobReceiver::Take(grpc::ByteBuffer& message) {
  ParsedWriteRequest request;
  if (!ParseWriteRequest(message, &request)) {
    return MakeError(Reason::kInvalidRequest, "a message of the stream is no WriteRequest");
  }
  if (writer_ == nullptr) {
    LOWERD_ASSIGN_OR_RETURN(const auto done, Begin(request));
    if (done.has_value()) return done;
  } else if (!request.resource_name.empty() && request.resource_name != resource_name_) {
    return FieldError("resource_name", "differs from that of the first message");
  }
  if (request.write_offset != offset_) {
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat("write_offset is ", request.write_offset, ", but ", offset_,
                                  " bytes are committed; ask QueryWriteStatus"));
  }
  LOWERD_RETURN_IF_ERROR(Store(request));
  if (!request.finish_write) return std::optional<int64_t>();
  if (zstd_.has_value() && !zstd_->complete()) {
    return MakeError(Reason::kInvalidRequest, "the zstd data of the upload is cut off");
  }
  LOWERD_RETURN_IF_ERROR(writer_->Commit());
  return std::optional<int64_t>(zstd_.has_value() ? offset_ : name_.digest.size_bytes());
}

absl::StatusOr<std::optional<int64_t>> BlobReceiver::Begin(const ParsedWriteRequest& request) {
  resource_name_ = request.resource_name;
  LOWERD_ASSIGN_OR_RETURN(name_, rpc::ResourceName::ParseWrite(resource_name_));
  const bool compressed = name_.compression != rpc::Compression::kIdentity;
  LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> missing, blobs_.FindMissing({name_.digest}));
  // REAPI: an upload of what is there already ends at once.
  if (missing.empty()) return std::optional<int64_t>(compressed ? -1 : name_.digest.size_bytes());
  // A compressed upload starts anew each time, so its bytes need no place to be found at again.
  LOWERD_ASSIGN_OR_RETURN(writer_,
                          blobs_.StartWrite(name_.digest, compressed ? "" : name_.upload_id));
  if (compressed) {
    zstd_.emplace();
  } else {
    // Bytes of a connection that broke may be stored still after its client has asked
    // QueryWriteStatus, so that it sends them again.
    offset_ = std::clamp<int64_t>(request.write_offset, 0, writer_->committed_size());
  }
  return std::optional<int64_t>();
}

absl::Status BlobReceiver::Store(const ParsedWriteRequest& request) {
  if (zstd_.has_value()) {
    for (const absl::string_view piece : request.data) {
      LOWERD_RETURN_IF_ERROR(
          zstd_->Write(piece, [this](absl::string_view bytes) { return writer_->Append(bytes); }));
    }
  } else {
    std::vector<absl::string_view> pieces = request.data;
    int64_t stored = std::max<int64_t>(writer_->committed_size() - offset_, 0);
    for (absl::string_view& piece : pieces) {
      const int64_t skip = std::min(stored, static_cast<int64_t>(piece.size()));
      piece.remove_prefix(static_cast<size_t>(skip));
      stored -= skip;
    }
    LOWERD_RETURN_IF_ERROR(writer_->AppendAll(pieces));
  }
  for (const absl::string_view piece : request.data) {
    offset_ += static_cast<int64_t>(piece.size());
    transfers_.received += static_cast<int64_t>(piece.size());
  }
  return absl::OkStatus();
}

void BlobReceiver::End(const absl::Status& status, int64_t committed_size) {
  // Lets the store forget the writer before the caller hears of the end.
  writer_.reset();
  if (status.ok()) {
    google::bytestream::WriteResponse response;
    response.set_committed_size(committed_size);
    const grpc::Slice slice(response.SerializeAsString());
    grpc::ByteBuffer bytes(&slice, 1);
    response_.Swap(&bytes);
  }
  absl::MutexLock lock(&mutex_);
  result_ = status;
}

}  // namespace lowerd::server
