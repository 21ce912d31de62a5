#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/server_context.h>

namespace lowerd::server {

// Cuts off blob streams whose client neither sends nor takes anything for too long, so that a
// client that hangs keeps no upload, no descriptor and no reservation. What an upload has stored
// stays, for the client to go on with. Thread-safe.
class StallWatch {
 public:
  explicit StallWatch(absl::Duration limit);
  // No stream may be left.
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // One stream, watched while it waits for its client. Must end before its call does.
  class Stream {
   public:
    ~Stream();
    // From now on it is the client's turn, until Resume. A call may be ended at any time between
    // the two, also for a stall before the last Resume.
    void Await();
    void Resume() { deadline_.store(kNever, std::memory_order_relaxed); }

   private:
    friend class StallWatch;
    static constexpr int64_t kNever = INT64_MAX;

    Stream(StallWatch& watch, grpc::CallbackServerContext& context)
        : watch_(watch), context_(context) {}

    StallWatch& watch_;
    grpc::CallbackServerContext& context_;
    // Nanoseconds since the epoch.
    std::atomic<int64_t> deadline_ = kNever;
  };

  std::unique_ptr<Stream> Watch(grpc::CallbackServerContext& context);

 private:
  void Run();

  const absl::Duration limit_;
  absl::Mutex mutex_;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lowerd::server
