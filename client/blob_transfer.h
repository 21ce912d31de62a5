#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/bytestream/bytestream.grpc.pb.h"
#include <grpcpp/channel.h>

#include "build/bazel/remote/execution/v2/remote_execution.grpc.pb.h"
#include "client/calls.h"
#include "client/local_file.h"
#include "src/base/digest.h"

namespace lowerd::client {

struct DownloadItem {
  Digest digest;
  // The folder must exist.
  std::string path;
};

// Moves blobs to and from a server, several at once, over ByteStream and batches. A broken stream
// goes on where it broke. Thread-safe; every call blocks.
class BlobTransfer {
 public:
  // `calls` must outlive this object.
  BlobTransfer(const std::shared_ptr<grpc::Channel>& channel, Calls& calls);

  // Those of `digests` that the server has not, in order.
  absl::StatusOr<std::vector<Digest>> FindMissing(absl::Span<const Digest> digests);

  // Uploads what the server lacks. `progress` counts the bytes of all files; bytes that the server
  // has already count as done. It is called by one thread at a time.
  absl::Status Upload(absl::Span<const LocalFile* const> files, const ByteProgress& progress = {});

  // Downloads all blobs and verifies their digests, then lets all files appear, in order. If any
  // fails, no file appears. Bytes that do not have their digest are fetched once more, then
  // INTERNAL_ERROR.
  absl::Status Download(absl::Span<const DownloadItem> items, const ByteProgress& progress = {});

  // Downloads one blob into an empty file, which may hold some of its bytes if this fails.
  absl::Status DownloadInto(const Digest& digest, int fd);

 private:
  class Meter;
  // Where a download goes.
  struct Sink {
    int fd;
    // For errors.
    std::string path;
    // Whether written bytes can be taken back.
    bool seekable;
  };

  absl::Status UploadBatches(absl::Span<const LocalFile* const> files, Meter& meter);
  absl::Status UploadBatch(absl::Span<const LocalFile* const> files, Meter& meter);
  absl::StatusOr<int64_t> MaxBatchBytes();
  absl::Status UploadStream(const LocalFile& file, Meter& meter);
  // One try from `offset`, in messages of at most `message_bytes`. Also OK if the server has the
  // whole blob already.
  absl::Status WriteFrom(const LocalFile& file, const std::string& name, int64_t offset,
                         int64_t message_bytes, Meter& meter);
  absl::StatusOr<int64_t> CommittedSize(const std::string& name);
  absl::Status DownloadStream(const Digest& digest, const Sink& sink, Meter& meter);
  absl::Duration TransferTimeout(int64_t size) const;
  int ParallelTransfers() const;

  Calls& calls_;
  const std::unique_ptr<google::bytestream::ByteStream::Stub> byte_stream_;
  const std::unique_ptr<build::bazel::remote::execution::v2::ContentAddressableStorage::Stub> cas_;
  const std::unique_ptr<build::bazel::remote::execution::v2::Capabilities::Stub> capabilities_;
};

}  // namespace lowerd::client
