#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/lowering/artifact_verifier.h"
#include "test/lowering/archive_testdata.h"
#include "test/lowering/zip_writer.h"

namespace lowerd::lowering {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kModule[] = "torch.jit.LoweredModule.reference.__torch__.Child";
constexpr char kWrapper[] = "torch.jit.LoweredWrapper.reference.__torch__.Child";

ArtifactContents Read(v1::Format format, const std::string& bytes) {
  auto contents = ReadArtifact(format, bytes);
  EXPECT_TRUE(contents.ok()) << contents.status();
  return contents.ok() ? *std::move(contents) : ArtifactContents{};
}

std::vector<ArtifactContents> ReadAll(const std::string& stem) {
  return {Read(v1::TORCHSCRIPT, TestData(stem + ".pt")),
          Read(v1::LITE_BYTECODE, TestData(stem + ".ptl")),
          Read(v1::FLATBUFFER, TestData(stem + ".ff"))};
}

v1::Manifest ManifestOf(const std::vector<std::string>& lowered) {
  v1::Manifest manifest;
  for (const std::string& type : lowered) {
    v1::LoweredModule& module = *manifest.add_lowered_modules();
    module.set_lowered_type(type);
    module.set_wrapper_type(kWrapper);
  }
  return manifest;
}

void ExpectFails(const std::vector<ArtifactContents>& artifacts, v1::Manifest manifest,
                 const std::string& message, const std::vector<std::string>& before = {}) {
  const absl::Status status = VerifyArtifacts(artifacts, before, manifest);
  EXPECT_EQ(ReasonOf(status), "VERIFICATION_FAILED") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(ArchiveArtifactTest, AllFormatsAreReadAlike) {
  const std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  for (const ArtifactContents& artifact : artifacts) {
    SCOPED_TRACE(v1::Format_Name(artifact.format));
    EXPECT_THAT(artifact.types, ElementsAre(Pair("__torch__.Child", v1::Type::MODULE),
                                            Pair("__torch__.One", v1::Type::MODULE),
                                            Pair(kModule, v1::Type::LOWERED_MODULE),
                                            Pair(kWrapper, v1::Type::LOWERED_WRAPPER)));
    EXPECT_THAT(artifact.extra_files, ElementsAre("notes.txt"));
  }
  EXPECT_TRUE(artifacts[0].functions.empty());
  for (const size_t lite : {1, 2}) {
    EXPECT_THAT(artifacts[lite].functions,
                ElementsAre("__torch__.One.forward", std::string(kModule) + ".__setstate__",
                            std::string(kModule) + ".__getstate__"));
  }
  EXPECT_EQ(artifacts[0].file_format_version, 3);
  EXPECT_EQ(artifacts[0].bytecode_version, 0);
  EXPECT_EQ(artifacts[1].bytecode_version, 8);
  EXPECT_EQ(artifacts[2].bytecode_version, 9);
}

TEST(ArchiveArtifactTest, KindsComeFromTheCode) {
  const std::string code =
      "class A(Module):\n  def f(self):\n    class_ = 1\n"
      "class B(NamedTuple):\n  x : int\n"
      "class C(Interface):\n  def f(self) -> int:\n    pass\n"
      "class D(ModuleInterface):\n  def f(self) -> int:\n    pass\n"
      "class E(Enum):\n  RED = 1\n"
      "class F:\n  x : int\n"
      "#class G:\n";
  const ArtifactContents contents =
      Read(v1::TORCHSCRIPT, WriteZip(With(MinimalModel(), "code/__torch__/pack/age.py", code)));
  EXPECT_THAT(contents.types, ElementsAre(Pair("__torch__.M", v1::Type::MODULE),
                                          Pair("__torch__.pack.age.A", v1::Type::MODULE),
                                          Pair("__torch__.pack.age.B", v1::Type::NAMED_TUPLE),
                                          Pair("__torch__.pack.age.C", v1::Type::INTERFACE),
                                          Pair("__torch__.pack.age.D", v1::Type::INTERFACE),
                                          Pair("__torch__.pack.age.E", v1::Type::ENUM),
                                          Pair("__torch__.pack.age.F", v1::Type::CLASS)));
  EXPECT_THAT(contents.referenced_types, ElementsAre("__torch__.M"));
}

TEST(ArchiveArtifactTest, KindsOfNames) {
  EXPECT_EQ(KindOfTypeName("torch.jit.LoweredModule.b.__torch__.M"), v1::Type::LOWERED_MODULE);
  EXPECT_EQ(KindOfTypeName("torch.jit.b.LoweredModule.__torch__.M"), v1::Type::LOWERED_MODULE);
  EXPECT_EQ(KindOfTypeName("torch.jit.LoweredWrapper.b.__torch__.M"), v1::Type::LOWERED_WRAPPER);
  EXPECT_EQ(KindOfTypeName("__torch__.torch.classes.__backends__.b"), v1::Type::CUSTOM_CLASS);
  EXPECT_EQ(KindOfTypeName("__torch__.LoweredModule"), v1::Type::MODULE);
}

TEST(ArchiveArtifactTest, UnreadableArtifactsAreVerificationFailures) {
  const std::string pt = TestData("lowered.pt");
  const std::string ff = TestData("lowered.ff");
  const std::pair<v1::Format, std::string> bad[] = {
      {v1::TORCHSCRIPT, pt.substr(0, pt.size() / 2)},
      {v1::TORCHSCRIPT, ""},
      {v1::TORCHSCRIPT, ff},
      {v1::LITE_BYTECODE, pt},
      {v1::FLATBUFFER, pt},
      {v1::FLATBUFFER, ""},
      {v1::FLATBUFFER, ff.substr(0, ff.size() / 2)},
      {v1::TORCHSCRIPT, WriteZip(With(MinimalModel(), "code/__torch__.py",
                                      "class M(Module):\n  pass\nclass M(Module):\n"))},
      {v1::LITE_BYTECODE, WriteZip(With(MinimalModel(), "bytecode.pkl", "not a pickle"))}};
  for (const auto& [format, bytes] : bad) {
    const auto contents = ReadArtifact(format, bytes);
    EXPECT_EQ(ReasonOf(contents.status()), "VERIFICATION_FAILED") << contents.status();
  }
}

TEST(ArchiveVerifyTest, AcceptsWhatIsRightAndFillsTheManifest) {
  v1::Manifest manifest = ManifestOf({kModule});
  ASSERT_EQ(VerifyArtifacts(ReadAll("lowered"), {}, manifest), absl::OkStatus());
  ASSERT_GE(manifest.types_size(), 4);
  for (const v1::Type& type : manifest.types()) {
    if (type.name() != kModule) continue;
    EXPECT_EQ(type.kind(), v1::Type::LOWERED_MODULE);
    EXPECT_THAT(type.formats(), ElementsAre(v1::TORCHSCRIPT, v1::LITE_BYTECODE, v1::FLATBUFFER));
  }
  EXPECT_THAT(manifest.extra_files(), ElementsAre("notes.txt"));
  EXPECT_EQ(manifest.producer().file_format_version(), 3);
  std::vector<std::string> checks;
  for (const v1::Verification& check : manifest.verifications()) checks.push_back(check.check());
  EXPECT_THAT(checks, ElementsAre("names", "setstate", "references", "formats-agree"));
}

TEST(ArchiveVerifyTest, TypesThatWereLoweredBeforeAreExpectedToo) {
  v1::Manifest manifest;
  EXPECT_EQ(VerifyArtifacts(ReadAll("lowered"), {kModule}, manifest), absl::OkStatus());
}

// PyTorch 1.13's own flatbuffer holds one class where the archives hold two.
TEST(ArchiveVerifyTest, FindsThatTheFlatbufferMergedTwoClasses) {
  const std::string second = "torch.jit.LoweredModule.reference.__torch__.___torch_mangle_1.Child";
  v1::Manifest manifest = ManifestOf({kModule, second});
  const std::vector<ArtifactContents> artifacts = ReadAll("twice");
  EXPECT_EQ(VerifyArtifacts({artifacts[0], artifacts[1]}, {}, manifest), absl::OkStatus());
  ExpectFails(artifacts, ManifestOf({kModule, second}), "the FLATBUFFER artifact was discarded");
}

TEST(ArchiveVerifyTest, LoweredTypesMustBeExactlyThoseOfTheManifest) {
  ExpectFails(ReadAll("lowered"), ManifestOf({}), kModule);
  ExpectFails(ReadAll("model"), ManifestOf({kModule}), "its lowered types are ; expected");
  ExpectFails(ReadAll("lowered"), ManifestOf({kModule, kModule}), "two lowered modules are called");
  std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  artifacts[0].types.erase(kWrapper);
  ExpectFails(artifacts, ManifestOf({kModule}), kWrapper);
}

TEST(ArchiveVerifyTest, EachLoweredTypeNeedsOneSetstate) {
  std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  std::vector<std::string>& functions = artifacts[1].functions;
  functions.push_back(functions[1]);
  ExpectFails(artifacts, ManifestOf({kModule}), "__setstate__ is written twice");
  functions.clear();
  ExpectFails(artifacts, ManifestOf({kModule}), "has no __setstate__");
}

TEST(ArchiveVerifyTest, WhatDataRefersToMustBeDefined) {
  std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  artifacts[0].referenced_types.push_back("__torch__.torch.classes.__backends__.reference");
  v1::Manifest manifest = ManifestOf({kModule});
  EXPECT_EQ(VerifyArtifacts(artifacts, {}, manifest), absl::OkStatus());
  artifacts[0].referenced_types.push_back("__torch__.Gone");
  ExpectFails(artifacts, ManifestOf({kModule}), "__torch__.Gone, which it does not define");
}

TEST(ArchiveVerifyTest, MangleNumbersMustBeOnesThatPyTorchParses) {
  std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  for (ArtifactContents& artifact : artifacts) {
    artifact.types.emplace("__torch__.___torch_mangle_2147483646.Ok", v1::Type::MODULE);
  }
  v1::Manifest manifest = ManifestOf({kModule});
  EXPECT_EQ(VerifyArtifacts(artifacts, {}, manifest), absl::OkStatus());
  artifacts[0].types.emplace("__torch__.___torch_mangle_2147483648.Bad", v1::Type::MODULE);
  ExpectFails(artifacts, ManifestOf({kModule}), "cannot parse the mangle of");
}

TEST(ArchiveVerifyTest, FormatsMustDefineTheSameTypes) {
  for (const size_t i : {0, 1, 2}) {
    std::vector<ArtifactContents> artifacts = ReadAll("lowered");
    artifacts[i].types.emplace("__torch__.Odd", v1::Type::MODULE);
    ExpectFails(artifacts, ManifestOf({kModule}),
                i == 2 ? "it defines __torch__.Odd" : "it defines");
  }
  // Only the flatbuffer may leave out a class that no data uses.
  std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  artifacts[0].types.emplace("__torch__.Unused", v1::Type::CLASS);
  artifacts[1].types.emplace("__torch__.Unused", v1::Type::CLASS);
  v1::Manifest manifest = ManifestOf({kModule});
  EXPECT_EQ(VerifyArtifacts(artifacts, {}, manifest), absl::OkStatus());
}

TEST(ArchiveVerifyTest, ExtraFilesMustBeTheSameInAllFormats) {
  std::vector<ArtifactContents> artifacts = ReadAll("lowered");
  artifacts[2].extra_files.clear();
  ExpectFails(artifacts, ManifestOf({kModule}), "extra files differ");
}

}  // namespace
}  // namespace lowerd::lowering
