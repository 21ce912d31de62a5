#include "src/names/sql_type_name_registry.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include <soci/soci.h>

#include "src/base/error.h"

namespace lowerd::names {
namespace {

constexpr char kColumns[] =
    "base_name, mangle, model, model_size, module_path, backend, backend_version, original_type, "
    "compile_spec, operation, claimed, identity";
constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1000;
constexpr size_t kMaxLoggedName = 10'000;
// Meanings of one logged name that are returned.
constexpr int kMaxMeanings = 1000;
// Names in memory; some hundred bytes each.
constexpr size_t kMaxKnown = 200'000;

std::string Hex(const Digest::Hash& hash) { return Digest(hash, 0).hex(); }

// One row, in the order of kColumns.
struct Row {
  std::string base_name, model, module_path, backend, backend_version, original_type, compile_spec,
      operation, identity;
  long long mangle = 0, model_size = 0, claimed = 0;

  NamedOrigin ToOrigin() const {
    NamedOrigin out;
    out.origin.base_name = base_name;
    const auto identity_digest = Digest::Parse(identity, 0);
    if (identity_digest.ok()) out.origin.identity = identity_digest->hash();
    const auto model_digest = Digest::Parse(model, model_size);
    if (model_digest.ok()) out.origin.model = *model_digest;
    out.origin.module_path = module_path;
    out.origin.backend = backend;
    out.origin.backend_version = backend_version;
    out.origin.original_type = original_type;
    out.origin.compile_spec_sha256 = compile_spec;
    out.origin.operation = operation;
    out.mangle = static_cast<uint32_t>(mangle);
    out.claimed = absl::FromUnixMicros(claimed);
    return out;
  }
};

// Runs "SELECT kColumns FROM type_names <rest>".
std::vector<NamedOrigin> Select(soci::session& session, const std::string& rest,
                                const std::vector<std::string>& texts,
                                const std::vector<long long>& numbers) {
  Row row;
  soci::statement statement(session);
  statement.exchange(soci::into(row.base_name));
  statement.exchange(soci::into(row.mangle));
  statement.exchange(soci::into(row.model));
  statement.exchange(soci::into(row.model_size));
  for (auto* column : {&row.module_path, &row.backend, &row.backend_version, &row.original_type,
                       &row.compile_spec, &row.operation}) {
    statement.exchange(soci::into(*column));
  }
  statement.exchange(soci::into(row.claimed));
  statement.exchange(soci::into(row.identity));
  for (const std::string& text : texts) statement.exchange(soci::use(text));
  for (const long long& number : numbers) statement.exchange(soci::use(number));
  statement.alloc();
  statement.prepare(absl::StrCat("SELECT ", kColumns, " FROM type_names ", rest));
  statement.define_and_bind();
  statement.execute();
  std::vector<NamedOrigin> out;
  while (statement.fetch()) out.push_back(row.ToOrigin());
  return out;
}

// The base names and the mangle (-1: any) that a name from a log can mean.
struct Query {
  std::vector<std::string> base_names;
  int64_t mangle = -1;
};

Query ParseLoggedName(absl::string_view text) {
  // Quotes, brackets and white space around it.
  auto inside = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '/' ||
           (c & 0x80) != 0;
  };
  while (!text.empty() && !inside(text.front())) text.remove_prefix(1);
  while (!text.empty() && !inside(text.back())) text.remove_suffix(1);
  std::string name(text);
  if (const size_t code = name.find("code/torch/jit/"); code != std::string::npos) {
    name = name.substr(code + 5);
  }
  // code/torch/jit/LoweredModule/acme/__torch__/___torch_mangle_1.py[.Lin]
  // ".py" ends a path or stands before a class; an atom may begin with "py".
  for (size_t at = 0; (at = name.find(".py", at)) != std::string::npos;) {
    const bool ends = at + 3 == name.size() || name[at + 3] == '.';
    if (ends) {
      name.erase(at, 3);
    } else {
      at += 3;
    }
  }
  name = absl::StrReplaceAll(name, {{"/", "."}});
  if (const size_t begin = name.find("torch.jit.Lowered"); begin != std::string::npos) {
    name = name.substr(begin);
  }
  Query out;
  const std::vector<int64_t> mangles = MangleNumbers(name);
  if (!mangles.empty()) out.mangle = mangles.back();
  std::string base = LoweredModuleNameOf(Demangle(name));
  // Whole, and without what may be a method behind it.
  out.base_names.push_back(base);
  const size_t dot = base.rfind('.');
  if (dot != std::string::npos) out.base_names.push_back(base.substr(0, dot));
  return out;
}

class SqlTypeNameRegistry final : public TypeNameRegistry {
 public:
  SqlTypeNameRegistry(state::Database& database, uint32_t range)
      : database_(database), range_(range) {}

  absl::StatusOr<std::vector<uint32_t>> Claim(absl::Span<const Origin> claims) override {
    std::vector<uint32_t> out(claims.size());
    if (Lookup(claims, out)) return out;
    const absl::Status status = database_.Write(
        [&](soci::session& session) { return Assign(session, claims, /*record=*/true, out); });
    if (!status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    // Names in use come back at once.
    if (known_.size() >= kMaxKnown) known_.clear();
    for (size_t i = 0; i < claims.size(); ++i) {
      known_.emplace(std::pair(claims[i].base_name, claims[i].identity), out[i]);
    }
    return out;
  }

  absl::StatusOr<std::vector<uint32_t>> Preview(absl::Span<const Origin> claims) override {
    std::vector<uint32_t> out(claims.size());
    if (Lookup(claims, out)) return out;
    LOWERD_RETURN_IF_ERROR(database_.Read(
        [&](soci::session& session) { return Assign(session, claims, /*record=*/false, out); }));
    return out;
  }

  absl::StatusOr<std::vector<NamedOrigin>> Resolve(absl::string_view name) override {
    const Query query = ParseLoggedName(name.substr(0, kMaxLoggedName));
    std::string and_mangle;
    std::vector<long long> numbers;
    if (query.mangle >= 0) {
      and_mangle = " AND mangle = :m";
      numbers.push_back(query.mangle);
    }
    const std::string rest =
        absl::StrCat(and_mangle, " ORDER BY claimed DESC, base_name, mangle LIMIT ", kMaxMeanings);
    std::vector<NamedOrigin> out;
    LOWERD_RETURN_IF_ERROR(database_.Read([&](soci::session& session) {
      for (const std::string& base : query.base_names) {
        out = Select(session, "WHERE base_name = :b" + rest, {base}, numbers);
        if (!out.empty()) return absl::OkStatus();
      }
      // The path of a code file names the package, not the class.
      const std::string& package = query.base_names.front();
      if (absl::StartsWith(package, kLoweredModulePrefix) && query.mangle >= 0) {
        out =
            Select(session, "WHERE " + BeginsWith(package + ".") + rest, {package + "."}, numbers);
      }
      return absl::OkStatus();
    }));
    return out;
  }

  absl::StatusOr<Page> List(absl::string_view prefix, int page_size,
                            absl::string_view page_token) override {
    page_size = page_size <= 0 ? kDefaultPage : std::min(page_size, kMaxPage);
    std::string after_name;
    long long after_mangle = -1;
    if (!page_token.empty()) {
      const bool hex = page_token.size() % 2 == 0 &&
                       page_token.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
      const std::string token = hex ? absl::HexStringToBytes(page_token) : "";
      const size_t bar = token.rfind('|');
      if (bar == std::string::npos || !absl::SimpleAtoi(token.substr(bar + 1), &after_mangle)) {
        return FieldError("page_token", "is not one that this server gave");
      }
      after_name = token.substr(0, bar);
    }
    Page out;
    LOWERD_RETURN_IF_ERROR(database_.Read([&](soci::session& session) {
      // One more than asked for tells whether there is another page.
      out.names =
          Select(session,
                 absl::StrCat("WHERE ", BeginsWith(prefix),
                              " AND (base_name > :n OR (base_name = :s AND mangle > :m)) "
                              "ORDER BY base_name, mangle LIMIT :l"),
                 {std::string(prefix), after_name, after_name}, {after_mangle, page_size + 1});
      return absl::OkStatus();
    }));
    if (out.names.size() > static_cast<size_t>(page_size)) {
      out.names.resize(static_cast<size_t>(page_size));
      const NamedOrigin& last = out.names.back();
      out.next_page_token =
          absl::BytesToHexString(absl::StrCat(last.origin.base_name, "|", last.mangle));
    }
    return out;
  }

 private:
  // Compares with one bound text. Not LIKE, which takes _ and % as wildcards.
  static std::string BeginsWith(absl::string_view prefix) {
    return absl::StrCat("substr(base_name, 1, ", CharacterCount(prefix), ") = :p");
  }
  // SQL counts characters, not bytes.
  static size_t CharacterCount(absl::string_view utf8) {
    return static_cast<size_t>(
        std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  }

  bool Lookup(absl::Span<const Origin> claims, std::vector<uint32_t>& out) {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < claims.size(); ++i) {
      const auto found = known_.find(std::pair(claims[i].base_name, claims[i].identity));
      if (found == known_.end()) return false;
      out[i] = found->second;
    }
    return true;
  }

  absl::Status Assign(soci::session& session, absl::Span<const Origin> claims, bool record,
                      std::vector<uint32_t>& out);

  state::Database& database_;
  const uint32_t range_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::pair<std::string, Digest::Hash>, uint32_t> known_
      ABSL_GUARDED_BY(mutex_);
};

absl::Status SqlTypeNameRegistry::Assign(soci::session& session, absl::Span<const Origin> claims,
                                         bool record, std::vector<uint32_t>& out) {
  // One order everywhere: replicas that claim the same names at once cannot wait for each other in
  // a circle, and who gets the next free N does not depend on the order of the claims.
  std::vector<size_t> order(claims.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(claims[a].base_name, claims[a].identity) <
           std::tie(claims[b].base_name, claims[b].identity);
  });

  // Prepared once: a batch of names is bound to them one after the other.
  Origin claim;
  std::string identity, model, holder;
  long long wanted = 0, model_size = 0;
  const long long now = absl::ToUnixMicros(absl::Now());
  soci::statement find_holder =
      (session.prepare << "SELECT identity FROM type_names WHERE base_name = :b AND mangle = :m",
       soci::use(claim.base_name), soci::use(wanted), soci::into(holder));
  soci::statement insert =
      (session.prepare
           << "INSERT INTO type_names (base_name, mangle, identity, model, model_size, "
              "module_path, backend, backend_version, original_type, compile_spec, operation, "
              "claimed) VALUES (:a, :b, :c, :d, :e, :f, :g, :h, :i, :j, :k, :l) ON CONFLICT DO "
              "NOTHING",
       soci::use(claim.base_name), soci::use(wanted), soci::use(identity), soci::use(model),
       soci::use(model_size), soci::use(claim.module_path), soci::use(claim.backend),
       soci::use(claim.backend_version), soci::use(claim.original_type),
       soci::use(claim.compile_spec_sha256), soci::use(claim.operation), soci::use(now));

  // What a dry run has given out but not recorded.
  std::set<std::pair<std::string, uint32_t>> taken;
  for (const size_t i : order) {
    claim = claims[i];
    identity = Hex(claim.identity);
    model = claim.model.hex();
    model_size = claim.model.size_bytes();
    // Names are never taken back, so the chain that a claim probes never breaks: the identity is
    // found before the first free N, if it has a name at all.
    const uint32_t preferred = PreferredMangle(claim.base_name, claim.identity, range_);
    for (uint32_t tries = 0;;) {
      if (tries >= range_) {
        return MakeError(Reason::kInternalError,
                         absl::StrCat("all ", range_, " names of ", claim.base_name, " are taken"));
      }
      const uint32_t candidate = static_cast<uint32_t>((uint64_t{preferred} + tries) % range_);
      wanted = candidate;
      if (record) {
        // Inserts nothing if N is taken, perhaps by another replica just now.
        insert.execute(true);
        if (insert.get_affected_rows() == 1) {
          out[i] = candidate;
          break;
        }
      }
      const bool held = find_holder.execute(true);
      if (held && holder == identity) {
        out[i] = candidate;
        break;
      }
      if (!held && !record && taken.emplace(claim.base_name, candidate).second) {
        out[i] = candidate;
        break;
      }
      // A row that another transaction has inserted and not committed is neither inserted over nor
      // seen; the same N is tried again.
      if (held || !record) ++tries;
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<TypeNameRegistry> MakeSqlTypeNameRegistry(state::Database& database,
                                                          uint32_t range) {
  return std::make_unique<SqlTypeNameRegistry>(database, range);
}

}  // namespace lowerd::names
