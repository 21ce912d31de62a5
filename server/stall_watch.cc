#include "server/stall_watch.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace lowerd::server {

StallWatch::Stream::~Stream() {
  absl::MutexLock lock(&watch_.mutex_);
  watch_.streams_.erase(this);
}

void StallWatch::Stream::Await() {
  deadline_.store(absl::ToUnixNanos(absl::Now() + watch_.limit_), std::memory_order_relaxed);
}

StallWatch::StallWatch(absl::Duration limit) : limit_(limit), thread_([this] { Run(); }) {}

StallWatch::~StallWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::unique_ptr<StallWatch::Stream> StallWatch::Watch(grpc::CallbackServerContext& context) {
  std::unique_ptr<Stream> stream(new Stream(*this, context));
  absl::MutexLock lock(&mutex_);
  streams_.insert(stream.get());
  return stream;
}

void StallWatch::Run() {
  const absl::Duration interval = std::min(limit_ / 4, absl::Seconds(5));
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval)) {
    const int64_t now = absl::ToUnixNanos(absl::Now());
    for (Stream* stream : streams_) {
      if (stream->deadline_.load(std::memory_order_relaxed) > now) continue;
      // Once is enough.
      stream->Resume();
      stream->context_.TryCancel();
    }
  }
}

}  // namespace lowerd::server
