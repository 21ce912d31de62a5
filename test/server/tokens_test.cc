#include "server/tokens.h"

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

std::string Line(const std::string& name, const std::string& expires, const std::string& token) {
  return absl::StrCat(name, " ", expires, "\tsha256:", Digest::Of(token).hex(), "\n");
}

absl::Time At(const std::string& text) {
  absl::Time time;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, nullptr));
  return time;
}

TEST(TokenSetTest, KnowsItsTokensByNameUntilTheyExpire) {
  const auto tokens = TokenSet::Parse(absl::StrCat("# who\n\n", Line("farm", "2026-12-31", "a"),
                                                   Line("dev", "2026-12-01T12:00:00Z", "b"),
                                                   Line("old", "never", "c"), "  # end\n"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens->NameOf("a", At("2026-12-31T23:59:59Z")), "farm");
  EXPECT_TRUE(HasReason(tokens->NameOf("a", At("2027-01-01T00:00:00Z")).status(),
                        Reason::kNotAuthenticated));
  EXPECT_EQ(*tokens->NameOf("b", At("2026-12-01T11:59:59Z")), "dev");
  EXPECT_FALSE(tokens->NameOf("b", At("2026-12-01T12:00:00Z")).ok());
  EXPECT_EQ(*tokens->NameOf("c", At("2099-01-01T00:00:00Z")), "old");
  for (const char* unknown : {"", "A", "ab", "sha256:"}) {
    EXPECT_TRUE(
        HasReason(tokens->NameOf(unknown, absl::Now()).status(), Reason::kNotAuthenticated));
  }
}

TEST(TokenSetTest, WrongLinesAreNamed) {
  const std::string good = Line("farm", "never", "a");
  for (const std::string& bad :
       {std::string("farm\n"), Line("farm", "tomorrow", "b"), std::string("x never sha256:12\n"),
        std::string("x never plaintext\n"), Line("farm", "never", "b")}) {
    const auto status = TokenSet::Parse(good + bad).status();
    EXPECT_TRUE(HasReason(status, Reason::kInvalidRequest)) << bad;
    EXPECT_NE(status.message().find("line 2"), absl::string_view::npos) << status;
    // No token in an error.
    EXPECT_EQ(status.message().find("plaintext"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace lowerd::server
