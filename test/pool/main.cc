// Runs the tests, with --unprivileged as an ordinary user also where it is started as root.

#include <cstdio>
#include <cstring>
#include <grp.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sys/prctl.h>

namespace {

constexpr uid_t kNobody = 65534;

bool BecomeNobody() {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
         ::setresuid(kNobody, kNobody, kNobody) == 0 &&
         // A change of the user takes /proc/self away from its owner.
         ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--unprivileged") != 0 || ::geteuid() != 0) continue;
    if (!BecomeNobody()) {
      std::perror("becoming an ordinary user");
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
