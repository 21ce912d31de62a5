#include "server/policy.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

using nlohmann::json;

bool MatchesPattern(absl::string_view pattern, absl::string_view text) {
  if (pattern == "*") return !text.empty();
  if (absl::EndsWith(pattern, "*")) {
    return absl::StartsWith(text, pattern.substr(0, pattern.size() - 1));
  }
  if (absl::StartsWith(pattern, "*")) return absl::EndsWith(text, pattern.substr(1));
  return pattern == text;
}

bool MatchesAny(const std::vector<std::string>& patterns, absl::string_view text) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return MatchesPattern(pattern, text); });
}

}  // namespace

// Reads with the place that errors name, like "allow_rules[2].source".
class Policy::Parser {
 public:
  static absl::Status Object(const json& value, const std::string& where,
                             std::initializer_list<absl::string_view> fields) {
    if (!value.is_object()) return FieldError(where, "is not an object");
    for (const auto& item : value.items()) {
      if (std::find(fields.begin(), fields.end(), item.key()) == fields.end()) {
        return FieldError(where, absl::StrCat("has a field \"", item.key(), "\"; there are ",
                                              absl::StrJoin(fields, ", ")));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Strings(const json& object, const char* field, const std::string& where,
                              std::vector<std::string>& out) {
    const auto found = object.find(field);
    if (found == object.end()) return absl::OkStatus();
    const std::string place = absl::StrCat(where, ".", field);
    if (!found->is_array()) return FieldError(place, "is not a list");
    for (const json& item : *found) {
      if (!item.is_string()) return FieldError(place, "holds something that is no string");
      out.push_back(item.get<std::string>());
    }
    return absl::OkStatus();
  }

  static absl::Status Name(const json& object, const std::string& where, std::string& out) {
    const auto found = object.find("name");
    if (found == object.end() || !found->is_string() || found->get<std::string>().empty()) {
      return FieldError(where, "has no name");
    }
    out = found->get<std::string>();
    return absl::OkStatus();
  }

  static absl::Status Headers(const json& request, const std::string& where,
                              std::vector<HeaderRule>& out) {
    const auto found = request.find("headers");
    if (found == request.end()) return absl::OkStatus();
    if (!found->is_array()) return FieldError(where + ".headers", "is not a list");
    for (size_t i = 0; i < found->size(); ++i) {
      const json& header = (*found)[i];
      const std::string place = absl::StrCat(where, ".headers[", i, "]");
      LOWERD_RETURN_IF_ERROR(Object(header, place, {"key", "values"}));
      HeaderRule rule;
      if (!header.contains("key") || !header["key"].is_string()) {
        return FieldError(place, "has no key");
      }
      rule.key = absl::AsciiStrToLower(header["key"].get<std::string>());
      // A43: these are not the caller's to choose.
      if (rule.key.empty() || rule.key.front() == ':' || absl::StartsWith(rule.key, "grpc-") ||
          rule.key == "host" || rule.key == "te") {
        return FieldError(place, absl::StrCat("\"", rule.key, "\" cannot be matched"));
      }
      LOWERD_RETURN_IF_ERROR(Strings(header, "values", place, rule.values));
      if (rule.values.empty()) return FieldError(place, "has no values");
      out.push_back(std::move(rule));
    }
    return absl::OkStatus();
  }

  static absl::Status Rules(const json& policy, const char* field, std::vector<Rule>& out) {
    const auto found = policy.find(field);
    if (found == policy.end()) return absl::OkStatus();
    if (!found->is_array()) return FieldError(field, "is not a list");
    for (size_t i = 0; i < found->size(); ++i) {
      const json& value = (*found)[i];
      const std::string where = absl::StrCat(field, "[", i, "]");
      LOWERD_RETURN_IF_ERROR(Object(value, where, {"name", "source", "request"}));
      Rule rule;
      LOWERD_RETURN_IF_ERROR(Name(value, where, rule.name));
      if (value.contains("source")) {
        LOWERD_RETURN_IF_ERROR(Object(value["source"], where + ".source", {"principals"}));
        LOWERD_RETURN_IF_ERROR(
            Strings(value["source"], "principals", where + ".source", rule.principals));
      }
      if (value.contains("request")) {
        LOWERD_RETURN_IF_ERROR(Object(value["request"], where + ".request", {"paths", "headers"}));
        LOWERD_RETURN_IF_ERROR(Strings(value["request"], "paths", where + ".request", rule.paths));
        LOWERD_RETURN_IF_ERROR(Headers(value["request"], where + ".request", rule.headers));
      }
      out.push_back(std::move(rule));
    }
    return absl::OkStatus();
  }
};

absl::StatusOr<Policy> Policy::Parse(absl::string_view text) {
  const json policy = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (policy.is_discarded()) return FieldError("policy", "is not JSON");
  LOWERD_RETURN_IF_ERROR(Parser::Object(policy, "policy", {"name", "deny_rules", "allow_rules"}));
  std::string name;
  LOWERD_RETURN_IF_ERROR(Parser::Name(policy, "policy", name));
  Policy out;
  LOWERD_RETURN_IF_ERROR(Parser::Rules(policy, "deny_rules", out.deny_));
  LOWERD_RETURN_IF_ERROR(Parser::Rules(policy, "allow_rules", out.allow_));
  if (out.allow_.empty()) return FieldError("policy", "allows nothing: it has no allow_rules");
  return out;
}

bool Policy::Rule::Matches(const Call& call) const {
  const bool from =
      principals.empty() ||
      std::any_of(call.principals.begin(), call.principals.end(),
                  [&](const std::string& who) { return MatchesAny(principals, who); });
  if (!from) return false;
  if (!paths.empty() && !MatchesAny(paths, call.path)) return false;
  return std::all_of(headers.begin(), headers.end(), [&](const HeaderRule& rule) {
    return std::any_of(call.headers.begin(), call.headers.end(), [&](const Header& header) {
      return header.key == rule.key && MatchesAny(rule.values, header.value);
    });
  });
}

absl::Status Policy::Check(const Call& call) const {
  const auto denied = [&](absl::string_view why) {
    return MakeError(
        Reason::kNotAllowed,
        absl::StrCat(call.principals.empty() ? "an unnamed caller" : call.principals.front(),
                     " may not call ", call.path, ": ", why));
  };
  for (const Rule& rule : deny_) {
    if (rule.Matches(call)) return denied(absl::StrCat("the rule \"", rule.name, "\" denies it"));
  }
  for (const Rule& rule : allow_) {
    if (rule.Matches(call)) return absl::OkStatus();
  }
  return denied("no rule of this server's policy allows it");
}

}  // namespace lowerd::server
