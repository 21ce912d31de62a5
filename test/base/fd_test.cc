#include "src/base/fd.h"

#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "src/base/error.h"

namespace lowerd {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(FdTest, MovingHandsOverAndDestructionCloses) {
  int raw;
  {
    Fd a(::memfd_create("a", MFD_CLOEXEC));
    raw = a.get();
    Fd b(std::move(a));
    EXPECT_FALSE(a.valid());
    EXPECT_EQ(b.get(), raw);
    Fd& self = b;
    b = std::move(self);
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(FdTest, ReadsBackWhatWasWrittenAndEnforcesTheLimit) {
  const Fd file(::memfd_create("a", MFD_CLOEXEC));
  ASSERT_TRUE(WriteAll(file.get(), "hello").ok());
  ASSERT_TRUE(WriteAllAt(file.get(), "J", 0).ok());
  EXPECT_EQ(*ReadFileToString(file.get(), 5), "Jello");
  EXPECT_TRUE(HasReason(ReadFileToString(file.get(), 4).status(), Reason::kLimitExceeded));
}

TEST(FdTest, OpeningAnAbsentFileNamesIt) {
  const auto fd = OpenFile("/nonexistent/file", O_RDONLY);
  EXPECT_NE(fd.status().message().find("/nonexistent/file"), absl::string_view::npos);
}

TEST(FdTest, WritingToAFullDeviceIsStoreFull) {
  const auto full = OpenFile("/dev/full", O_WRONLY);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_TRUE(HasReason(WriteAll(full->get(), "x"), Reason::kStoreFull));
}

}  // namespace
}  // namespace lowerd
