#pragma once

#include <string>

#include <sys/types.h>

#include "test/support/temp_dir.h"

namespace lowerd::test {

// A private PostgreSQL from Debian's package, reachable by a Unix socket only, gone at the end.
// Root runs it as user postgres. Throws std::runtime_error if it does not start: a test that needs
// it must not pass without.
class PostgresCluster {
 public:
  PostgresCluster();
  ~PostgresCluster();

  // A new, empty database: "postgresql://...".
  std::string NewDatabase();

  // As an operator restarts a server: connections break, data stays.
  void Stop();
  void Start();

 private:
  TempDir folder_;
  pid_t pid_ = -1;
  int databases_ = 0;
};

}  // namespace lowerd::test
