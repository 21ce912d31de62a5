// Names per second of the type-name registry: known names, which are answered from memory, and new
// ones, which are durable when Claim returns.
//
//   registry_bench

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <benchmark/benchmark.h>

#include "src/base/digest.h"
#include "src/names/sql_type_name_registry.h"
#include "src/state/database.h"
#include "test/support/postgres_cluster.h"
#include "test/support/temp_dir.h"

namespace lowerd::names {
namespace {

// Distinct names over a whole run.
std::vector<Origin> NewClaims(int count) {
  static std::atomic<int64_t> next{0};
  std::vector<Origin> claims(static_cast<size_t>(count));
  for (Origin& claim : claims) {
    const std::string path = absl::StrCat("features.", next++, ".conv");
    claim.base_name = "torch.jit.LoweredModule.reference.__torch__.torch.nn.modules.conv.Conv2d";
    claim.identity = Digest::Of(path).hash();
    claim.model = Digest::Of("model");
    claim.module_path = path;
    claim.backend = "reference";
    claim.backend_version = "1";
    claim.original_type = "__torch__.torch.nn.modules.conv.Conv2d";
    claim.compile_spec_sha256 = Digest::Of("spec").hex();
    claim.operation = "operations/0123456789abcdef0123456789abcdef";
  }
  return claims;
}

// One registry for the threads of a benchmark.
struct Registry {
  explicit Registry(const std::string& location)
      : database(state::Database::Open(location).value()),
        registry(MakeSqlTypeNameRegistry(*database)) {}

  std::unique_ptr<state::Database> database;
  std::unique_ptr<TypeNameRegistry> registry;
};

Registry& Sqlite() {
  static test::TempDir folder;
  static Registry registry("sqlite:" + folder.File("state.db"));
  return registry;
}

Registry& Postgresql() {
  static test::PostgresCluster cluster;
  static Registry registry(cluster.NewDatabase());
  return registry;
}

// The argument is the number of names a job claims.
void Known(benchmark::State& state, Registry& on) {
  const std::vector<Origin> claims = NewClaims(static_cast<int>(state.range(0)));
  if (!on.registry->Claim(claims).ok()) std::abort();
  for (auto _ : state) {
    if (!on.registry->Claim(claims).ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void New(benchmark::State& state, Registry& on) {
  for (auto _ : state) {
    state.PauseTiming();
    const std::vector<Origin> claims = NewClaims(static_cast<int>(state.range(0)));
    state.ResumeTiming();
    if (!on.registry->Claim(claims).ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void BM_KnownNames(benchmark::State& state) { Known(state, Sqlite()); }
void BM_NewNamesSqlite(benchmark::State& state) { New(state, Sqlite()); }
void BM_NewNamesPostgresql(benchmark::State& state) { New(state, Postgresql()); }

BENCHMARK(BM_KnownNames)->Arg(1)->Arg(50)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(BM_NewNamesSqlite)->Arg(1)->Arg(50)->Arg(1000)->Threads(1)->Threads(8)->UseRealTime();
BENCHMARK(BM_NewNamesPostgresql)->Arg(1)->Arg(50)->Arg(1000)->Threads(1)->Threads(8)->UseRealTime();

}  // namespace
}  // namespace lowerd::names
