#include "server/blob_reader.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/bytestream/bytestream.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/slice.h>
#include <sys/mman.h>

#include "src/base/error.h"
#include "src/rpc/grpc_status.h"

namespace lowerd::server {
namespace {

// Well below the 4 MiB that receivers accept by default.
constexpr int64_t kChunk = 1 << 20;
// ReadResponse.data: field 10, length-delimited.
constexpr uint8_t kDataTag = 10 << 3 | 2;

// The head of a ReadResponse whose data field has `size` bytes, which follow.
grpc::Slice ResponseHead(size_t size) {
  uint8_t head[1 + 5];
  head[0] = kDataTag;
  const uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(size), head + 1);
  return grpc::Slice(head, static_cast<size_t>(end - head));
}

}  // namespace

// The mapped blob. Slices of it may outlive the reader in gRPC's send queue.
class BlobReader::Mapping {
 public:
  static absl::StatusOr<std::shared_ptr<Mapping>> Create(const Fd& fd, int64_t size) {
    void* data = nullptr;
    if (size > 0) {
      data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, fd.get(), 0);
      if (data == MAP_FAILED) return ErrnoError(errno, "mapping a blob");
      ::madvise(data, static_cast<size_t>(size), MADV_SEQUENTIAL);
    }
    return std::shared_ptr<Mapping>(new Mapping(static_cast<char*>(data), size));
  }
  ~Mapping() {
    if (size_ > 0) ::munmap(data_, static_cast<size_t>(size_));
  }

  absl::string_view View(int64_t offset, int64_t count) const {
    return {data_ + offset, static_cast<size_t>(count)};
  }

  // A slice of the mapping, which lives as long as the slice. The pages behind it are given back
  // once the next chunk is due, so that a large download does not count against the server's
  // memory.
  static grpc::Slice Share(const std::shared_ptr<Mapping>& mapping, int64_t offset, int64_t count) {
    auto* hold = new std::shared_ptr<Mapping>(mapping);
    return grpc::Slice(
        mapping->data_ + offset, static_cast<size_t>(count),
        [](void* h) { delete static_cast<std::shared_ptr<Mapping>*>(h); }, hold);
  }

  void DropBefore(int64_t offset) {
    constexpr int64_t kPage = 4096;
    const int64_t end = offset / kPage * kPage;
    if (end > dropped_) {
      ::madvise(data_ + dropped_, static_cast<size_t>(end - dropped_), MADV_DONTNEED);
      dropped_ = end;
    }
  }

 private:
  Mapping(char* data, int64_t size) : data_(data), size_(size) {}
  char* const data_;
  const int64_t size_;
  int64_t dropped_ = 0;
};

BlobReader::BlobReader(blob::BlobStore& blobs, ThreadPool& pool, TransferCounts& transfers,
                       std::unique_ptr<StallWatch::Stream> stall, ClientLimits::Place place,
                       grpc::ByteBuffer request)
    : pool_(pool),
      transfers_(transfers),
      stall_(std::move(stall)),
      place_(std::move(place)),
      request_(std::move(request)) {
  pool_.Schedule([this, &blobs] { Begin(blobs); });
}

void BlobReader::Begin(blob::BlobStore& blobs) {
  if (const absl::Status status = Open(blobs); !status.ok()) {
    Finish(rpc::ToGrpc(WithReason(status)));
    return;
  }
  Next();
}

absl::Status BlobReader::Open(blob::BlobStore& blobs) {
  google::bytestream::ReadRequest request;
  if (!grpc::GenericDeserialize<grpc::ProtoBufferReader, google::bytestream::ReadRequest>(&request_,
                                                                                          &request)
           .ok()) {
    return MakeError(Reason::kInvalidRequest, "the message is no ReadRequest");
  }
  LOWERD_ASSIGN_OR_RETURN(name_, rpc::ResourceName::ParseRead(request.resource_name()));
  const int64_t size = name_.digest.size_bytes();
  if (request.read_limit() < 0) return FieldError("read_limit", "is negative");
  const bool compressed = name_.compression != rpc::Compression::kIdentity;
  if (compressed && request.read_limit() != 0) {
    return FieldError("read_limit", "must be 0 for compressed reads");
  }
  auto fd = blobs.Open(name_.digest);
  // ByteStream says NOT_FOUND where a job's input would be a failed precondition.
  if (HasReason(fd.status(), Reason::kBlobMissing)) {
    return NotFoundError("blob", name_.digest.ToString());
  }
  if (!fd.ok()) return fd.status();
  if (request.read_offset() < 0 || request.read_offset() > size) {
    return MakeError(Reason::kOffsetOutOfRange,
                     absl::StrCat("read_offset ", request.read_offset(),
                                  " is outside of the blob's ", size, " bytes"));
  }
  position_ = request.read_offset();
  end_ = request.read_limit() == 0 ? size
                                   : position_ + std::min(request.read_limit(), size - position_);
  LOWERD_ASSIGN_OR_RETURN(mapping_, Mapping::Create(*fd, size));
  if (compressed) zstd_.emplace();
  return absl::OkStatus();
}

std::optional<grpc::ByteBuffer> BlobReader::Chunk() {
  mapping_->DropBefore(position_);
  if (!zstd_.has_value()) {
    const int64_t count = std::min(kChunk, end_ - position_);
    if (count == 0) return std::nullopt;
    const grpc::Slice slices[] = {ResponseHead(static_cast<size_t>(count)),
                                  Mapping::Share(mapping_, position_, count)};
    position_ += count;
    transfers_.sent += count;
    return grpc::ByteBuffer(slices, 2);
  }
  std::string compressed;
  while (!zstd_ended_ && compressed.empty()) {
    const int64_t count = std::min(kChunk, end_ - position_);
    zstd_ended_ = position_ + count == end_;
    zstd_->Write(mapping_->View(position_, count), zstd_ended_, &compressed);
    position_ += count;
  }
  if (compressed.empty()) return std::nullopt;
  transfers_.sent += static_cast<int64_t>(compressed.size());
  const grpc::Slice slices[] = {ResponseHead(compressed.size()), grpc::Slice(compressed)};
  return grpc::ByteBuffer(slices, 2);
}

void BlobReader::Next() {
  std::optional<grpc::ByteBuffer> chunk = Chunk();
  if (!chunk.has_value()) {
    Finish(grpc::Status::OK);
    return;
  }
  outgoing_.Swap(&*chunk);
  stall_->Await();
  StartWrite(&outgoing_);
}

void BlobReader::OnWriteDone(bool ok) {
  stall_->Resume();
  if (!ok) {
    Finish(rpc::ToGrpc(MakeError(Reason::kOperationCancelled, "the reader went away")));
    return;
  }
  pool_.Schedule([this] { Next(); });
}

void BlobReader::OnDone() { delete this; }

}  // namespace lowerd::server
