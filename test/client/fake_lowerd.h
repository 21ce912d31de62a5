#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "google/bytestream/bytestream.grpc.pb.h"
#include "google/longrunning/operations.grpc.pb.h"
#include <grpcpp/server.h>

#include "build/bazel/remote/execution/v2/remote_execution.grpc.pb.h"
#include "lowerd/v1/lowering.grpc.pb.h"

namespace lowerd::client {

// A server on a free port that keeps blobs in memory and misbehaves as told. Set what it does
// before the client calls; what it saw is read behind its mutex. Thread-safe.
class FakeLowerd {
 public:
  FakeLowerd();
  ~FakeLowerd();

  const std::string& address() const { return address_; }
  void AddBlob(const std::string& bytes);
  // Bytes of a blob; "absent" if it is not there.
  std::string Blob(const std::string& bytes);

  absl::Mutex mutex;
  // Cuts every upload stream once it has kept this many bytes of it, each offset once.
  std::set<int64_t> cut_uploads_at ABSL_GUARDED_BY(mutex);
  // Ends every download stream at this offset, each once.
  std::set<int64_t> cut_downloads_at ABSL_GUARDED_BY(mutex);
  // So many downloads have a wrong byte.
  int corrupt_downloads ABSL_GUARDED_BY(mutex) = 0;
  // FindMissingBlobs claims that all are missing.
  bool claim_missing ABSL_GUARDED_BY(mutex) = false;
  int64_t max_batch_bytes ABSL_GUARDED_BY(mutex) = 0;
  // What LowerModel and WatchOperation do; LowerModel fails with `lower_error` if it is not OK.
  absl::Status lower_error ABSL_GUARDED_BY(mutex);
  absl::Status run_error ABSL_GUARDED_BY(mutex);
  bool never_done ABSL_GUARDED_BY(mutex) = false;
  int cut_watches ABSL_GUARDED_BY(mutex) = 0;
  // Artifact and manifest that a lowering gives.
  std::string artifact ABSL_GUARDED_BY(mutex) = "artifact bytes";
  std::string manifest ABSL_GUARDED_BY(mutex) = "{}";

  std::vector<int64_t> batch_sizes ABSL_GUARDED_BY(mutex);
  std::vector<int64_t> write_starts ABSL_GUARDED_BY(mutex);
  std::vector<std::string> request_ids ABSL_GUARDED_BY(mutex);
  std::vector<std::string> cancelled ABSL_GUARDED_BY(mutex);
  int watches ABSL_GUARDED_BY(mutex) = 0;

 private:
  struct Services;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace lowerd::client
