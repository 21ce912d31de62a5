// The parts of lowerctl that need no server.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/compile_spec_json.h"
#include "client/cli/exit_status.h"
#include "client/cli/lowering_flags.h"
#include "client/cli/text.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CompileSpecs> Parse(absl::string_view json,
                                   const std::vector<std::string>& methods = {"forward"}) {
  return ParseCompileSpecs(json, methods, [](const std::string& path) {
    build::bazel::remote::execution::v2::Digest digest;
    digest.set_hash(path);
    return absl::StatusOr<build::bazel::remote::execution::v2::Digest>(digest);
  });
}

std::string Text(absl::string_view json) {
  const auto specs = Parse(json);
  return specs.ok() ? specs->at("forward").ShortDebugString() : specs.status().ToString();
}

TEST(CompileSpecTest, JsonTypesBecomeTorchScriptTypes) {
  EXPECT_EQ(Text("null"), "none { }");
  EXPECT_EQ(Text("true"), "bool: true");
  EXPECT_EQ(Text("-9223372036854775808"), "int: -9223372036854775808");
  EXPECT_EQ(Text("1.0"), "double: 1");
  EXPECT_EQ(Text("\"a\""), "string: \"a\"");
  EXPECT_EQ(Text("[1, \"b\"]"), "list { values { int: 1 } values { string: \"b\" } }");
  EXPECT_EQ(Text(R"({"z": 1, "a": 2})"),
            "dict { entries { key { string: \"z\" } value { int: 1 } } "
            "entries { key { string: \"a\" } value { int: 2 } } }");
}

TEST(CompileSpecTest, TypedObjectsReachTheOtherTypes) {
  EXPECT_EQ(Text(R"({"$tuple": [1]})"), "tuple { values { int: 1 } }");
  EXPECT_EQ(Text(R"({"$bytes": "/w=="})"), "bytes: \"\\377\"");
  EXPECT_EQ(Text(R"({"$int": "7"})"), "int: 7");
  EXPECT_EQ(Text(R"({"$double": "inf"})"), "double: inf");
  EXPECT_EQ(Text(R"({"$tensor": "scale.pt"})"), "tensor { hash: \"scale.pt\" }");
  EXPECT_EQ(Text(R"({"$dict": [[1, true]]})"),
            "dict { entries { key { int: 1 } value { bool: true } } }");
}

TEST(CompileSpecTest, ObjectOfMethodsGivesEachItsOwnAndAnythingElseIsForAll) {
  const auto own = Parse(R"({"forward": 1, "encode": 2})", {"forward", "encode", "decode"});
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->at("forward").int_(), 1);
  EXPECT_EQ(own->at("encode").int_(), 2);
  EXPECT_FALSE(own->contains("decode"));
  const auto shared = Parse(R"({"forward": 1, "bits": 8})", {"forward", "encode"});
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ(shared->at("encode").dict().entries_size(), 2);
}

TEST(CompileSpecTest, WhatIsNotUnderstoodIsRefusedWithItsPlace) {
  for (const auto& [json, place] : std::vector<std::pair<std::string, std::string>>{
           {"", "not JSON"},
           {"{\"a\": }", "column"},
           {"1e999", "not JSON"},
           {"18446744073709551615", "64 bits"},
           {R"({"a": [1, {"$tuple": 2}]})", "$.a[1]"},
           {R"({"$bytes": "%"})", "base64"},
           {R"({"$set": "1"})", "$set is not known"},
           {R"({"$dict": [[1]]})", "[key, value]"},
           {std::string(200, '[') + std::string(200, ']'), "nested deeper"}}) {
    const auto specs = Parse(json);
    EXPECT_TRUE(HasReason(specs.status(), Reason::kInvalidRequest)) << json;
    EXPECT_THAT(std::string(specs.status().message()), HasSubstr(place));
  }
}

TEST(ErrorLineTest, HoldsItsFormWhateverTheServerSays) {
  EXPECT_EQ(ErrorLine(absl::Status(absl::StatusCode::kUnknown, "a\nb\x1b[1m\xc2\x9b\xff")),
            "lowerctl: UNKNOWN [INTERNAL_ERROR]: a b [1m ?");
  EXPECT_EQ(ErrorLine(ErrorFromReason("NOT a\nreason", "x")),
            "lowerctl: FAILED_PRECONDITION [OPERATION_STATE]: x");
  EXPECT_EQ(ErrorLine(ErrorFromReason("MODULE_NOT_FOUND", "x")),
            "lowerctl: NOT_FOUND [MODULE_NOT_FOUND]: x");
  EXPECT_EQ(ErrorLine(ErrorFromReason("REASON_OF_A_NEWER_SERVER", "x")),
            "lowerctl: FAILED_PRECONDITION [REASON_OF_A_NEWER_SERVER]: x");
}

TEST(ArtifactStemTest, IsTheFileNameWithoutFolderAndLastExtension) {
  EXPECT_EQ(ArtifactStem("/a.b/net.v2.pt"), "net.v2");
  EXPECT_EQ(ArtifactStem("net"), "net");
  EXPECT_EQ(ArtifactStem(absl::StrCat(std::string(199, 'a'), "\u00e9.pt")), std::string(199, 'a'));
}

TEST(TextTest, KeepsUnicodeAndDropsWhatSteersATerminal) {
  EXPECT_EQ(Printable("caf\u00e9 \U0001f600"), "caf\u00e9 \U0001f600");
  EXPECT_EQ(Printable("a\tb\u202ec\u2028d"), "a b c d");
  EXPECT_EQ(Printable("\xed\xa0\x80\xc0\xaf\xe2\x82"), "???????");
}

}  // namespace
}  // namespace lowerd::cli
