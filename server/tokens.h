#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "src/base/digest.h"

namespace lowerd::server {

// Bearer tokens for clients without certificates. The file holds one token a line, by its SHA-256,
// so that whoever reads the file cannot use it:
//
//   # name      expires (a date, an RFC 3339 time, or never)   token
//   farm-7      2027-06-30                                     sha256:9f86d081884c7d65...
//
// Immutable; thread-safe.
class TokenSet {
 public:
  // INVALID_REQUEST names the line.
  static absl::StatusOr<TokenSet> Parse(absl::string_view text);

  // The name of a token. NOT_AUTHENTICATED if there is none such or if it has expired. Takes the
  // same time for every token that it does not know.
  absl::StatusOr<std::string> NameOf(absl::string_view token, absl::Time now) const;

 private:
  struct Entry {
    std::string name;
    absl::Time expires;
    Digest::Hash hash;
  };
  std::vector<Entry> entries_;
};

}  // namespace lowerd::server
