#pragma once

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "src/state/database.h"
#include "test/support/postgres_cluster.h"
#include "test/support/temp_dir.h"

namespace lowerd::test {

// A test that runs on both engines: INSTANTIATE_TEST_SUITE_P(Engines, Name, BothEngines(),
// EngineName).
class DatabaseTest : public testing::TestWithParam<state::Database::Engine> {
 protected:
  // One cluster for all tests of a program.
  static void SetUpTestSuite() { Cluster(); }

  void SetUp() override {
    location_ = GetParam() == state::Database::Engine::kSqlite
                    ? "sqlite:" + folder_.File("state.db")
                    : Cluster().NewDatabase();
  }

  std::unique_ptr<state::Database> Open() {
    auto database = state::Database::Open(location_);
    EXPECT_TRUE(database.ok()) << database.status();
    return database.ok() ? *std::move(database) : nullptr;
  }

  const std::string& location() const { return location_; }
  const TempDir& folder() const { return folder_; }

  static PostgresCluster& Cluster() {
    static PostgresCluster cluster;
    return cluster;
  }

 private:
  TempDir folder_;
  std::string location_;
};

inline auto BothEngines() {
  return testing::Values(state::Database::Engine::kSqlite, state::Database::Engine::kPostgresql);
}

inline std::string EngineName(const testing::TestParamInfo<state::Database::Engine>& info) {
  return info.param == state::Database::Engine::kSqlite ? "Sqlite" : "Postgresql";
}

}  // namespace lowerd::test
