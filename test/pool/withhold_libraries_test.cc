#include "src/pool/withhold_libraries.h"

#include <csignal>
#include <dlfcn.h>
#include <execinfo.h>
#include <functional>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sys/wait.h>

// This program needs withhold_from, which needs withhold_needed and withhold_shared; it needs
// withhold_shared by itself too.
extern "C" int LowerdTestFrom();
extern "C" int LowerdTestShared();

namespace lowerd::pool {
namespace {

// The wait status of a child that exits with what `body` returns.
int InChild(const std::function<int()>& body) {
  const pid_t child = ::_Fork();
  if (child == 0) {
    // No stack trace of a sanitizer.
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(WithholdLibrariesTest, ChildrenGetOnlyWhatIsNeededOtherwise) {
  ASSERT_EQ(LowerdTestFrom(), 42);
  const auto needed = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "LowerdTestNeeded"));
  ASSERT_NE(needed, nullptr);
  EXPECT_EQ(WithholdLibraries("libwithhold_other", {"libwithhold_needed"}), 0);
  EXPECT_EQ(WithholdLibraries("libwithhold_from", {"libwithhold_absent"}), 0);
  EXPECT_TRUE(WIFEXITED(InChild(needed)));

  EXPECT_EQ(WithholdLibraries("libwithhold_from", {"libwithhold_needed", "libwithhold_shared"}), 1);
  const int status = InChild(needed);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
  EXPECT_EQ(WEXITSTATUS(InChild(LowerdTestShared)), 3);
  // Exceptions find their way although the withheld library lies in between.
  EXPECT_EQ(WEXITSTATUS(InChild([] {
              try {
                return static_cast<int>(std::string("x").at(7));
              } catch (const std::out_of_range&) {
                return 7;
              }
            })),
            7);
  EXPECT_EQ(WEXITSTATUS(InChild([] {
              void* frames[8];
              return ::backtrace(frames, 8) > 0 ? 5 : 0;
            })),
            5);
  // The parent keeps all.
  EXPECT_EQ(LowerdTestFrom(), 42);
}

}  // namespace
}  // namespace lowerd::pool
