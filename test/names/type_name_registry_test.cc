#include <atomic>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"

#include "src/base/error.h"
#include "src/base/type_name.h"
#include "src/names/sql_type_name_registry.h"
#include "test/support/databases.h"

namespace lowerd::names {
namespace {

constexpr char kBase[] = "torch.jit.LoweredModule.reference.__torch__.acme.Lin";

Origin MakeOrigin(const std::string& base, const std::string& seed) {
  Origin origin;
  origin.base_name = base;
  origin.identity = Digest::Of(seed).hash();
  origin.model = Digest::Of("model of " + seed);
  origin.module_path = "layer1." + seed;
  origin.backend = "reference";
  origin.backend_version = "1";
  origin.original_type = "__torch__.acme.___torch_mangle_3.Lin";
  origin.compile_spec_sha256 = Digest::Of("spec").hex();
  origin.operation = "operations/1";
  return origin;
}

uint32_t ClaimOne(TypeNameRegistry& registry, const Origin& origin) {
  auto mangles = registry.Claim({origin});
  EXPECT_TRUE(mangles.ok()) << mangles.status();
  return mangles.ok() ? mangles->front() : 0;
}

TEST(PreferredMangleTest, IsTheSameOnEveryMachineAndEveryDay) {
  const Digest::Hash identity = Digest::Of("identity").hash();
  // Fixed for ever: published names stand on it. SHA-256("1:a" + SHA-256("b")), its first eight
  // bytes.
  EXPECT_EQ(PreferredMangle("a", Digest::Of("b").hash()), 449518094u);
  EXPECT_NE(PreferredMangle(kBase, identity), PreferredMangle(kBase, Digest::Of("x").hash()));
  EXPECT_LT(PreferredMangle(kBase, identity), kMangleRange);
}

class RegistryTest : public test::DatabaseTest {};

TEST_P(RegistryTest, SameClaimGetsTheSameNameAlsoAfterARestart) {
  const Origin origin = MakeOrigin(kBase, "a");
  uint32_t first;
  {
    auto database = Open();
    auto registry = MakeSqlTypeNameRegistry(*database);
    first = ClaimOne(*registry, origin);
    EXPECT_EQ(first, PreferredMangle(kBase, origin.identity));
    EXPECT_EQ(ClaimOne(*registry, origin), first);
  }
  auto database = Open();
  EXPECT_EQ(ClaimOne(*MakeSqlTypeNameRegistry(*database), origin), first);
}

TEST_P(RegistryTest, CollisionsTakeTheNextFreeNumberAndStayThere) {
  auto database = Open();
  constexpr uint32_t kRange = 8;
  std::set<uint32_t> taken;
  std::vector<uint32_t> given;
  {
    auto registry = MakeSqlTypeNameRegistry(*database, kRange);
    for (uint32_t i = 0; i < kRange; ++i) {
      given.push_back(ClaimOne(*registry, MakeOrigin(kBase, absl::StrCat(i))));
      EXPECT_LT(given.back(), kRange);
      EXPECT_TRUE(taken.insert(given.back()).second) << "given twice";
    }
    // Full for this base name, not for another.
    EXPECT_TRUE(HasReason(registry->Claim({MakeOrigin(kBase, "one more")}).status(),
                          Reason::kInternalError));
    ClaimOne(*registry, MakeOrigin(absl::StrCat(kBase, "X"), "one more"));
  }
  auto registry = MakeSqlTypeNameRegistry(*database, kRange);
  for (uint32_t i = 0; i < kRange; ++i) {
    EXPECT_EQ(ClaimOne(*registry, MakeOrigin(kBase, absl::StrCat(i))), given[i]);
  }
}

TEST_P(RegistryTest, PreviewTellsWhatClaimWillGiveAndRecordsNothing) {
  auto database = Open();
  auto registry = MakeSqlTypeNameRegistry(*database, 4);
  const std::vector<Origin> claims = {MakeOrigin(kBase, "a"), MakeOrigin(kBase, "b"),
                                      MakeOrigin(kBase, "c")};
  const auto preview = registry->Preview(claims);
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_TRUE(registry->List("", 10, "")->names.empty());
  EXPECT_EQ(*registry->Claim(claims), *preview);
}

TEST_P(RegistryTest, NoNameHasTwoOwnersWhateverTheThreadsAndReplicasDo) {
  auto first = Open();
  // SQLite belongs to one process; PostgreSQL is shared by two.
  std::unique_ptr<state::Database> second;
  if (GetParam() == state::Database::Engine::kPostgresql) second = Open();
  auto one = MakeSqlTypeNameRegistry(*first, 64);
  auto two = MakeSqlTypeNameRegistry(second != nullptr ? *second : *first, 64);
  std::vector<std::vector<uint32_t>> given(8, std::vector<uint32_t>(48));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < given.size(); ++t) {
    threads.emplace_back([&, t] {
      TypeNameRegistry& registry = t % 2 == 0 ? *one : *two;
      for (size_t i = 0; i < 48; ++i) {
        const size_t at = (i * 5 + t * 7) % 48;
        given[t][at] = ClaimOne(registry, MakeOrigin(kBase, absl::StrCat(at)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& row : given) EXPECT_EQ(row, given.front());
  EXPECT_EQ(std::set<uint32_t>(given[0].begin(), given[0].end()).size(), 48u);
}

TEST_P(RegistryTest, ResolvesANameInEveryFormThatALogShows) {
  auto database = Open();
  auto registry = MakeSqlTypeNameRegistry(*database);
  const Origin origin = MakeOrigin(kBase, "a");
  const uint32_t mangle = ClaimOne(*registry, origin);
  ClaimOne(*registry, MakeOrigin(absl::StrCat(kBase, "Other"), "b"));
  const std::string name = MangledName(kBase, mangle);
  for (const std::string& logged :
       {name, WrapperNameOf(name), name + ".forward", WrapperNameOf(name) + ".__setstate__",
        std::string(kBase), "\"" + name + "\",", "RuntimeError: " + name,
        absl::StrCat("code/torch/jit/LoweredModule/reference/__torch__/acme/___torch_mangle_",
                     mangle, ".py"),
        absl::StrCat(
            "archive/code/torch/jit/LoweredWrapper/reference/__torch__/acme/___torch_mangle_",
            mangle, ".py")}) {
    const auto origins = registry->Resolve(logged);
    ASSERT_TRUE(origins.ok()) << origins.status();
    ASSERT_EQ(origins->size(), 1u) << logged;
    EXPECT_EQ(origins->front().mangle, mangle);
    EXPECT_EQ(origins->front().origin.model, origin.model);
    EXPECT_EQ(origins->front().origin.module_path, origin.module_path);
    EXPECT_EQ(origins->front().origin.identity, origin.identity);
  }
  EXPECT_TRUE(registry->Resolve(MangledName(kBase, mangle + 1))->empty());
  EXPECT_TRUE(registry->Resolve("")->empty());
}

TEST_P(RegistryTest, ResolvesNamesWhoseAtomsBeginLikeAFileSuffix) {
  auto database = Open();
  auto registry = MakeSqlTypeNameRegistry(*database);
  const std::string base = "torch.jit.LoweredModule.reference.__torch__.pytorch_net.python.Lin";
  const uint32_t mangle = ClaimOne(*registry, MakeOrigin(base, "a"));
  EXPECT_EQ(registry->Resolve(MangledName(base, mangle))->size(), 1u);
  EXPECT_EQ(registry->Resolve(MangledName(base, mangle) + ".forward")->size(), 1u);
}

TEST_P(RegistryTest, NameWithoutMangleGivesEveryOriginNewestFirst) {
  auto database = Open();
  auto registry = MakeSqlTypeNameRegistry(*database);
  ClaimOne(*registry, MakeOrigin(kBase, "old"));
  ClaimOne(*registry, MakeOrigin(kBase, "new"));
  const auto origins = registry->Resolve(kBase);
  ASSERT_EQ(origins->size(), 2u);
  EXPECT_EQ(origins->front().origin.module_path, "layer1.new");
}

TEST_P(RegistryTest, ListsInPagesByPrefix) {
  auto database = Open();
  auto registry = MakeSqlTypeNameRegistry(*database);
  std::vector<Origin> claims;
  for (int i = 0; i < 25; ++i)
    claims.push_back(MakeOrigin(absl::StrCat("p_", i % 2, ".A"), absl::StrCat(i)));
  claims.push_back(MakeOrigin("pX0.A", "wildcard"));
  ASSERT_TRUE(registry->Claim(claims).ok());
  size_t listed = 0;
  std::string token;
  do {
    const auto page = registry->List("p_", 7, token);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LE(page->names.size(), 7u);
    listed += page->names.size();
    token = page->next_page_token;
  } while (!token.empty());
  EXPECT_EQ(listed, 25u);
  EXPECT_TRUE(HasReason(registry->List("", 7, "junk").status(), Reason::kInvalidRequest));
}

// Two registries are two replicas where the engine lets two open one database.
TEST_P(RegistryTest, ClaimsOfTheSameNamesInOppositeOrderAtOnceAgree) {
  const bool replicas = GetParam() == state::Database::Engine::kPostgresql;
  auto first_database = Open(), second_database = replicas ? Open() : nullptr;
  auto first = MakeSqlTypeNameRegistry(*first_database),
       second = MakeSqlTypeNameRegistry(replicas ? *second_database : *first_database);
  for (int round = 0; round < 10; ++round) {
    std::vector<Origin> claims;
    for (int i = 0; i < 20; ++i) {
      claims.push_back(MakeOrigin(absl::StrCat(kBase, i), absl::StrCat(round)));
    }
    const std::vector<Origin> reversed(claims.rbegin(), claims.rend());
    absl::StatusOr<std::vector<uint32_t>> there;
    std::thread other([&] { there = second->Claim(reversed); });
    const auto here = first->Claim(claims);
    other.join();
    ASSERT_TRUE(here.ok()) << here.status();
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(*here, std::vector<uint32_t>(there->rbegin(), there->rend()));
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, RegistryTest, test::BothEngines(), test::EngineName);

}  // namespace
}  // namespace lowerd::names
