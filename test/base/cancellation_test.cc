#include "src/base/cancellation.h"

#include <poll.h>

#include <gtest/gtest.h>

namespace lowerd {
namespace {

bool Readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

TEST(CancellationTest, DescriptorBecomesReadableAndStaysSo) {
  Cancellation cancellation;
  EXPECT_FALSE(cancellation.cancelled());
  EXPECT_FALSE(Readable(cancellation.fd()));
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_TRUE(Readable(cancellation.fd()));
  EXPECT_TRUE(Readable(cancellation.fd()));
}

}  // namespace
}  // namespace lowerd
