#include "src/state/schema.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include <soci/soci.h>

#include "src/base/error.h"

namespace lowerd::state {
namespace {

struct Migration {
  const char* statements[16];
};

constexpr Migration kMigrations[] = {
    {{
        "CREATE TABLE type_names ("
        " base_name TEXT NOT NULL, mangle BIGINT NOT NULL, identity TEXT NOT NULL,"
        " model TEXT NOT NULL, model_size BIGINT NOT NULL, module_path TEXT NOT NULL,"
        " backend TEXT NOT NULL, backend_version TEXT NOT NULL, original_type TEXT NOT NULL,"
        " compile_spec TEXT NOT NULL, operation TEXT NOT NULL, claimed BIGINT NOT NULL,"
        " PRIMARY KEY (base_name, mangle), UNIQUE (base_name, identity))",
        "CREATE TABLE jobs ("
        " id TEXT PRIMARY KEY, action_key TEXT NOT NULL, client TEXT NOT NULL,"
        " priority BIGINT NOT NULL, bypass BIGINT NOT NULL, request TEXT NOT NULL,"
        " inputs TEXT NOT NULL, running BIGINT NOT NULL, replica TEXT NOT NULL,"
        " lease BIGINT NOT NULL, attempt BIGINT NOT NULL, cancelled BIGINT NOT NULL,"
        " created BIGINT NOT NULL)",
        "CREATE INDEX jobs_by_order ON jobs (running, priority, created)",
        "CREATE INDEX jobs_by_action ON jobs (action_key)",
        "CREATE TABLE operations ("
        " name TEXT PRIMARY KEY, client TEXT NOT NULL, request_id TEXT NOT NULL,"
        " job TEXT NOT NULL, action_key TEXT NOT NULL, inputs TEXT NOT NULL,"
        " priority BIGINT NOT NULL, state BIGINT NOT NULL, targets_done BIGINT NOT NULL,"
        " targets_total BIGINT NOT NULL, attempt BIGINT NOT NULL,"
        " cancel_requested BIGINT NOT NULL, cached BIGINT NOT NULL, failed BIGINT NOT NULL,"
        " error TEXT NOT NULL, result TEXT NOT NULL, outputs TEXT NOT NULL,"
        " created BIGINT NOT NULL, started BIGINT NOT NULL, updated BIGINT NOT NULL,"
        " ended BIGINT NOT NULL)",
        "CREATE INDEX operations_by_job ON operations (job)",
        "CREATE INDEX operations_by_time ON operations (created, name)",
        "CREATE INDEX operations_by_end ON operations (ended)",
        "CREATE UNIQUE INDEX operations_by_request ON operations (client, request_id)"
        " WHERE request_id <> ''",
        "CREATE TABLE actions ("
        " action_key TEXT PRIMARY KEY, result TEXT NOT NULL, outputs TEXT NOT NULL,"
        " created BIGINT NOT NULL)",
    }},
    {{
        // One wanted job an action, whichever replica it came to. Twins from before are told apart
        // as jobs that nobody joins.
        "UPDATE jobs SET bypass = 1 WHERE id NOT IN (SELECT MIN(id) FROM jobs GROUP BY action_key)",
        "CREATE UNIQUE INDEX jobs_in_flight ON jobs (action_key)"
        " WHERE bypass = 0 AND cancelled = 0",
        "CREATE INDEX actions_by_time ON actions (created)",
        // In microseconds.
        "ALTER TABLE jobs ADD COLUMN timeout BIGINT NOT NULL DEFAULT 0",
        // An identity is found by probing from the N that it prefers; an index by identity would
        // double what a new name costs.
        "ALTER TABLE type_names RENAME TO type_names_1",
        "CREATE TABLE type_names ("
        " base_name TEXT NOT NULL, mangle BIGINT NOT NULL, identity TEXT NOT NULL,"
        " model TEXT NOT NULL, model_size BIGINT NOT NULL, module_path TEXT NOT NULL,"
        " backend TEXT NOT NULL, backend_version TEXT NOT NULL, original_type TEXT NOT NULL,"
        " compile_spec TEXT NOT NULL, operation TEXT NOT NULL, claimed BIGINT NOT NULL,"
        " PRIMARY KEY (base_name, mangle))",
        "INSERT INTO type_names SELECT * FROM type_names_1",
        "DROP TABLE type_names_1",
    }},
};

// Any number that other users of one database do not take.
constexpr long long kMigrationLock = 0x6c6f77657264;

constexpr int kVersion = static_cast<int>(std::size(kMigrations));

}  // namespace

absl::Status Migrate(soci::session& session) {
  soci::transaction transaction(session);
  // Replicas may start at once; "IF NOT EXISTS" alone does not make them wait for each other.
  if (session.get_backend_name() == "postgresql") {
    session << "SELECT pg_advisory_xact_lock(" << kMigrationLock << ")";
  }
  session << "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)";
  long long version = 0;
  session << "SELECT COALESCE(MAX(version), 0) FROM schema_version", soci::into(version);
  if (version > kVersion) {
    return MakeError(Reason::kOperationState,
                     absl::StrCat("the state store has schema version ", version,
                                  ", this lowerd knows up to ", kVersion, "; use a newer lowerd"));
  }
  for (long long i = version; i < kVersion; ++i) {
    for (const char* statement : kMigrations[i].statements) {
      if (statement != nullptr) session << statement;
    }
    const long long next = i + 1;
    session << "INSERT INTO schema_version (version) VALUES (:v)", soci::use(next);
  }
  transaction.commit();
  return absl::OkStatus();
}

}  // namespace lowerd::state
