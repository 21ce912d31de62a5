#include "src/base/digest.h"

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/base/sha256.h"

namespace lowerd {
namespace {

constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(DigestTest, HashesAsFips180SaysForAbc) {
  EXPECT_EQ(Digest::Of("abc").ToString(), std::string(kAbc) + "/3");
}

TEST(DigestTest, DefaultIsTheEmptyBlob) { EXPECT_EQ(Digest(), Digest::Of("")); }

TEST(DigestTest, ParsesWhatItPrints) {
  const auto parsed = Digest::Parse(kAbc, 3);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, Digest::Of("abc"));
}

TEST(DigestTest, RefusesWhatIsNoDigest) {
  const std::string upper = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
  for (const std::string& hex : {std::string(), std::string("abc"), upper, std::string(kAbc) + "0",
                                 std::string(63, 'a') + "\n"}) {
    EXPECT_TRUE(HasReason(Digest::Parse(hex, 3).status(), Reason::kInvalidRequest)) << hex;
  }
  EXPECT_TRUE(HasReason(Digest::Parse(kAbc, -1).status(), Reason::kInvalidRequest));
}

TEST(Sha256Test, PiecesGiveTheSameAsTheWhole) {
  Sha256 sha;
  sha.Update("a");
  sha.Update("");
  sha.Update("bc");
  EXPECT_EQ(sha.Finish(), Sha256::Of("abc"));
}

}  // namespace
}  // namespace lowerd
