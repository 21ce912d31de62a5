#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lowerd {

// A fixed number of threads for work that may block. Thread-safe. The queue is unbounded: callers
// bound what they schedule.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  // Runs what is queued, then joins.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs `task` soon on one of the threads. Tasks start in the order they were scheduled. Must not
  // be called during destruction, but for calls from a task.
  void Schedule(std::function<void()> task);

  // Scheduled tasks that have not started.
  int queued() const;

 private:
  void Work();

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace lowerd
