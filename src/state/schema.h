#pragma once

#include "absl/status/status.h"

namespace soci {
class session;
}

namespace lowerd::state {

// Brings the tables to this program's version, in one transaction. The migrations are a list: one
// that has been released is never changed, new ones are added at the end. OPERATION_STATE if the
// tables are newer.
//
// Columns use types that both engines have. Opaque bytes are hexadecimal text: SOCI's blobs need a
// different life cycle on each engine, and these are small. Times are microseconds since 1970.
// There are no NULLs.
absl::Status Migrate(soci::session& session);

}  // namespace lowerd::state
