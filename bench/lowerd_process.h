#pragma once

#include <string>
#include <vector>

#include "test/support/temp_dir.h"

namespace lowerd::bench {

// A lowerd of this build with a data directory of its own, serving on a free port of loopback until
// destruction. Ends the program if it does not start: a benchmark has nothing to say then.
class LowerdProcess {
 public:
  explicit LowerdProcess(const std::vector<std::string>& flags = {});
  ~LowerdProcess();
  LowerdProcess(const LowerdProcess&) = delete;
  LowerdProcess& operator=(const LowerdProcess&) = delete;

  const std::string& address() const { return address_; }
  int pid() const { return pid_; }

 private:
  const test::TempDir folder_;
  int pid_ = -1;
  std::string address_;
};

}  // namespace lowerd::bench
