#include "client/parallel.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lowerd::client {
namespace {

class Tasks {
 public:
  Tasks(int count, const std::function<absl::Status(int)>& task) : count_(count), task_(task) {}

  void Work() {
    for (int index = Next(); index < count_; index = Next()) {
      absl::Status status = task_(index);
      absl::MutexLock lock(&mutex_);
      first_failure_.Update(status);
    }
  }

  absl::Status first_failure() const {
    absl::MutexLock lock(&mutex_);
    return first_failure_;
  }

 private:
  int Next() {
    absl::MutexLock lock(&mutex_);
    return first_failure_.ok() ? next_++ : count_;
  }

  const int count_;
  const std::function<absl::Status(int)>& task_;
  mutable absl::Mutex mutex_;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status RunParallel(int count, int threads, const std::function<absl::Status(int)>& task) {
  Tasks tasks(count, task);
  std::vector<std::thread> others;
  for (int i = 1; i < std::min(threads, count); ++i) others.emplace_back([&] { tasks.Work(); });
  tasks.Work();
  for (std::thread& thread : others) thread.join();
  return tasks.first_failure();
}

}  // namespace lowerd::client
