#include "server/logging.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lowerd::server {
namespace {

TEST(LoggingTest, JsonFieldsHoldAnything) {
  const std::string hostile = "quote\" back\\slash new\nline \x01 \xc3\xa9";
  const auto parsed = nlohmann::json::parse(
      "{" + FormatEvent(LogFormat::kJson, "job ended", {{"error", hostile}, {"client", ""}}) + "}");
  EXPECT_EQ(parsed["message"], "job ended");
  EXPECT_EQ(parsed["error"], hostile);
  EXPECT_FALSE(parsed.contains("client"));
}

TEST(LoggingTest, TextStaysOnOneLineAndQuotesWhatIsNoWord) {
  EXPECT_EQ(FormatEvent(LogFormat::kText, "job ended",
                        {{"client", "ipv4:127.0.0.1"}, {"error", "two words\n{x=\"y\"}"}}),
            R"(job ended client=ipv4:127.0.0.1 error="two words\n{x=\"y\"}")");
}

}  // namespace
}  // namespace lowerd::server
