#pragma once

#include <memory>

#include "src/names/type_name_registry.h"
#include "src/state/database.h"

namespace lowerd::names {

// The registry in the state store, with the names that this process has seen in memory: claiming a
// known name touches no database. `database` must outlive it. `range` is for tests.
std::unique_ptr<TypeNameRegistry> MakeSqlTypeNameRegistry(state::Database& database,
                                                          uint32_t range = kMangleRange);

}  // namespace lowerd::names
