#include "src/state/database.h"

#include <atomic>
#include <thread>
#include <vector>

#include <soci/postgresql/soci-postgresql.h>
#include <soci/soci.h>

#include "src/base/error.h"
#include "test/support/databases.h"

namespace lowerd::state {
namespace {

class StateTest : public test::DatabaseTest {};

long long CountRows(Database& database) {
  long long rows = -1;
  EXPECT_TRUE(database
                  .Read([&](soci::session& session) {
                    session << "SELECT COUNT(*) FROM actions", soci::into(rows);
                    return absl::OkStatus();
                  })
                  .ok());
  return rows;
}

absl::Status InsertRow(Database& database, const std::string& key) {
  return database.Write([&](soci::session& session) {
    session << "INSERT INTO actions (action_key, result, outputs, created) VALUES (:k, '', '', 0)",
        soci::use(key);
    return absl::OkStatus();
  });
}

TEST_P(StateTest, WhatWasWrittenIsThereAfterOpeningAgain) {
  {
    auto database = Open();
    ASSERT_TRUE(InsertRow(*database, "a").ok());
  }
  EXPECT_EQ(CountRows(*Open()), 1);
}

TEST_P(StateTest, BodyThatFailsIsRolledBackAloneAndItsErrorComesBack) {
  auto database = Open();
  const absl::Status failed = database->Write([](soci::session& session) {
    session << "INSERT INTO actions (action_key, result, outputs, created) VALUES ('x', '', '', 0)";
    return MakeError(Reason::kQueueFull, "full");
  });
  EXPECT_TRUE(HasReason(failed, Reason::kQueueFull)) << failed;
  EXPECT_EQ(CountRows(*database), 0);
}

TEST_P(StateTest, SqlErrorsBecomeStatusesAndTheNextBodyWorks) {
  auto database = Open();
  ASSERT_TRUE(InsertRow(*database, "a").ok());
  EXPECT_TRUE(HasReason(InsertRow(*database, "a"), Reason::kInternalError));
  EXPECT_TRUE(InsertRow(*database, "b").ok());
  EXPECT_EQ(CountRows(*database), 2);
}

TEST_P(StateTest, ManyWritersAtOnceAreAllCommittedOrAllTold) {
  auto database = Open();
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        // Every fourth body fails within the same groups of commits.
        const bool twin = i % 4 == 3;
        const std::string key = std::to_string(t) + "/" + std::to_string(twin ? i - 1 : i);
        failures += !InsertRow(*database, key).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 16 * 5);
  EXPECT_EQ(CountRows(*database), 16 * 15);
}

TEST_P(StateTest, SchemaOfTheFutureIsRefused) {
  {
    auto database = Open();
    ASSERT_TRUE(database
                    ->Write([](soci::session& session) {
                      session << "INSERT INTO schema_version (version) VALUES (1000)";
                      return absl::OkStatus();
                    })
                    .ok());
  }
  const auto again = Database::Open(location());
  EXPECT_TRUE(HasReason(again.status(), Reason::kOperationState)) << again.status();
}

TEST(StateLocationTest, SecondProcessOnOneFileIsRefusedAndToldWhy) {
  test::TempDir folder;
  const std::string location = "sqlite:" + folder.File("state.db");
  const auto first = Database::Open(location);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Database::Open(location);
  EXPECT_TRUE(HasReason(second.status(), Reason::kOperationState));
  EXPECT_NE(second.status().message().find("another lowerd"), absl::string_view::npos);
}

TEST(StateLocationTest, UnknownLocationsAndUnreachableServersAreErrors) {
  EXPECT_TRUE(HasReason(Database::Open("mysql://x").status(), Reason::kInvalidRequest));
  EXPECT_FALSE(Database::Open("postgresql:///x?host=/nonexistent").ok());
  EXPECT_FALSE(Database::Open("sqlite:/nonexistent/state.db").ok());
}

class PostgresqlTest : public test::DatabaseTest {};

TEST_P(PostgresqlTest, ConnectionsComeBackAfterTheServerDroppedThem) {
  auto database = Open();
  const auto ask = [](soci::session& session) {
    int one = 0;
    session << "SELECT 1", soci::into(one);
    return absl::OkStatus();
  };
  ASSERT_TRUE(database->Write(ask).ok());
  {
    soci::session admin(soci::postgresql, location());
    admin << "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> "
             "pg_backend_pid() AND datname = current_database()";
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(database->Write(ask).ok());
    EXPECT_TRUE(database->Read(ask).ok());
  }
}

TEST_P(PostgresqlTest, ServerThatIsAwayIsUnavailableAndWorksWhenItIsBack) {
  auto database = Open();
  const auto ask = [](soci::session& session) {
    int one = 0;
    session << "SELECT 1", soci::into(one);
    return absl::OkStatus();
  };
  Cluster().Stop();
  for (int i = 0; i < 10; ++i) {
    for (const absl::Status& status : {database->Write(ask), database->Read(ask)}) {
      EXPECT_TRUE(HasReason(status, Reason::kServerUnavailable)) << status;
    }
  }
  Cluster().Start();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(database->Write(ask).ok());
    EXPECT_TRUE(database->Read(ask).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Served, PostgresqlTest, testing::Values(Database::Engine::kPostgresql),
                         test::EngineName);
INSTANTIATE_TEST_SUITE_P(Engines, StateTest, test::BothEngines(), test::EngineName);

}  // namespace
}  // namespace lowerd::state
