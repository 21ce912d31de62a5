#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lowerd::server {

// Who may call what, in the JSON of gRPC's authorization policies (gRFC A43): deny rules are looked
// at first, then some allow rule must match; what no rule allows is denied. Evaluated here because
// distributions build gRPC without that engine.
//
//   {"name": "farm",
//    "allow_rules": [
//      {"name": "farm does all", "source": {"principals": ["farm-*"]}},
//      {"name": "developers plan", "source": {"principals": ["*@example.com"]},
//       "request": {"paths": ["/lowerd.v1.LoweringService/PlanLowering"]}}]}
//
// Patterns are exact, a prefix ("a*"), a suffix ("*a") or, as "*", anything that is there and not
// empty. Immutable; thread-safe.
class Policy {
 public:
  // INVALID_REQUEST says where the text departs from A43. Fields that A43 does not have are errors:
  // a rule with a misspelt condition would match too much.
  static absl::StatusOr<Policy> Parse(absl::string_view json);

  struct Header {
    absl::string_view key;
    absl::string_view value;
  };
  struct Call {
    // All names of the caller; none if it is not authenticated.
    std::vector<std::string> principals;
    // "/package.Service/Method".
    absl::string_view path;
    // Keys in lower case.
    std::vector<Header> headers;
  };
  // OK, or NOT_ALLOWED with the rule that denies.
  absl::Status Check(const Call& call) const;

 private:
  class Parser;
  struct HeaderRule {
    std::string key;
    std::vector<std::string> values;
  };
  struct Rule {
    std::string name;
    std::vector<std::string> principals;
    std::vector<std::string> paths;
    std::vector<HeaderRule> headers;

    bool Matches(const Call& call) const;
  };

  std::vector<Rule> deny_;
  std::vector<Rule> allow_;
};

}  // namespace lowerd::server
