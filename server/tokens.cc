#include "server/tokens.h"

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <openssl/crypto.h>

#include "src/base/error.h"
#include "src/base/sha256.h"

namespace lowerd::server {
namespace {

constexpr absl::string_view kHashPrefix = "sha256:";

// A token that expires on a day is good through that day, in UTC.
std::optional<absl::Time> ParseExpiry(const std::string& text) {
  if (text == "never") return absl::InfiniteFuture();
  absl::Time time;
  std::string error;
  if (absl::ParseTime("%Y-%m-%d", text, &time, &error)) return time + absl::Hours(24);
  if (absl::ParseTime(absl::RFC3339_full, text, &time, &error)) return time;
  return std::nullopt;
}

absl::Status BadLine(int number, absl::string_view what) {
  return FieldError(absl::StrCat("line ", number), what);
}

}  // namespace

absl::StatusOr<TokenSet> TokenSet::Parse(absl::string_view text) {
  TokenSet out;
  std::set<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() != 3) return BadLine(number, "is not NAME EXPIRES sha256:HEX");
    const std::optional<absl::Time> expires = ParseExpiry(words[1]);
    if (!expires) {
      return BadLine(number, absl::StrCat("\"", words[1],
                                          "\" is not a date like 2027-06-30, an RFC 3339 time or "
                                          "never"));
    }
    absl::string_view hex = words[2];
    const bool hashed = absl::ConsumePrefix(&hex, kHashPrefix);
    const auto digest = Digest::Parse(hex, 0);
    if (!hashed || !digest.ok()) {
      return BadLine(number, "its token is not sha256: and 64 hexadecimal digits");
    }
    if (!names.insert(words[0]).second) {
      return BadLine(number, absl::StrCat("there are two tokens called ", words[0]));
    }
    out.entries_.push_back({words[0], *expires, digest->hash()});
  }
  return out;
}

absl::StatusOr<std::string> TokenSet::NameOf(absl::string_view token, absl::Time now) const {
  const Digest::Hash hash = Sha256::Of(token);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = &entry;
  }
  if (found == nullptr) return MakeError(Reason::kNotAuthenticated, "the token is not known here");
  if (now >= found->expires) {
    return MakeError(Reason::kNotAuthenticated,
                     absl::StrCat("the token ", found->name, " has expired"));
  }
  return found->name;
}

}  // namespace lowerd::server
