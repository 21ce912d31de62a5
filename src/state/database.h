#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace soci {
class session;
}

namespace lowerd::state {

// The one state store, SQLite (WAL) or PostgreSQL, behind one SQL code path (SOCI). Thread-safe.
// SOCI's exceptions end in this library; they become INTERNAL_ERROR, or SERVER_UNAVAILABLE if the
// database cannot be reached.
class Database {
 public:
  // `location` is "sqlite:/path/to/file" or "postgresql://...". Opens it and migrates the schema;
  // OPERATION_STATE if the schema is newer than this program, or if another lowerd has the same
  // SQLite file open.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& location);
  virtual ~Database() = default;

  // INVALID_ARGUMENT (without a reason) if a location is of no kind that Open takes.
  static absl::Status CheckLocation(const std::string& location);

  enum class Engine { kSqlite, kPostgresql };
  virtual Engine engine() const = 0;

  // Runs `body` in a transaction on some connection and commits durably. Concurrent calls may be
  // grouped into one commit; a body that fails is rolled back alone. `body` may run more than once
  // (serialisation failures), so it must have no effect but through the session.
  virtual absl::Status Write(const std::function<absl::Status(soci::session&)>& body) = 0;
  // Runs `body` in a read transaction.
  virtual absl::Status Read(const std::function<absl::Status(soci::session&)>& body) = 0;
};

}  // namespace lowerd::state
