#include "src/base/thread_pool.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

namespace lowerd {
namespace {

TEST(ThreadPoolTest, DestructionRunsWhatWasScheduled) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool(2);
    for (int i = 0; i < 100; ++i) pool.Schedule([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(ThreadPoolTest, TasksRunSideBySide) {
  ThreadPool pool(3);
  // Each task ends only when all three have begun.
  auto* barrier = new absl::Barrier(3);
  std::atomic<int> ran = 0;
  absl::Notification all;
  for (int i = 0; i < 3; ++i) {
    pool.Schedule([&] {
      if (barrier->Block()) delete barrier;
      if (++ran == 3) all.Notify();
    });
  }
  all.WaitForNotification();
}

TEST(ThreadPoolTest, OneThreadRunsTasksInOrder) {
  std::vector<int> order;
  {
    ThreadPool pool(1);
    for (int i = 0; i < 50; ++i) pool.Schedule([&order, i] { order.push_back(i); });
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace lowerd
