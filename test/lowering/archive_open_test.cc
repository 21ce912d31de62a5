#include <cstring>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/lowering/model_archive.h"
#include "test/lowering/archive_testdata.h"
#include "test/lowering/zip_writer.h"

namespace lowerd::lowering {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const std::string& bytes, absl::string_view reason, const std::string& message,
                   const ModelArchive::Limits& limits = {}) {
  const auto archive = ModelArchive::Open(bytes, limits);
  ASSERT_FALSE(archive.ok());
  EXPECT_EQ(ReasonOf(archive.status()), reason) << archive.status();
  EXPECT_THAT(std::string(archive.status().message()), HasSubstr(message));
}

void ExpectCorrupt(const std::string& bytes, const std::string& message) {
  ExpectRefused(bytes, "MODEL_CORRUPT", message);
}

void ExpectOpens(const std::string& bytes) {
  const auto archive = ModelArchive::Open(bytes);
  EXPECT_TRUE(archive.ok()) << archive.status();
}

// Overwrites bytes of a zip at the n-th place where `signature` stands.
template <typename T>
std::string Patched(std::string zip, const std::string& signature, int n, size_t offset, T value) {
  size_t at = zip.find(signature);
  for (; n > 0; --n) at = zip.find(signature, at + 1);
  std::memcpy(zip.data() + at + offset, &value, sizeof value);
  return zip;
}

const std::string kLocal = "PK\x03\x04";
const std::string kCentral = "PK\x01\x02";

TEST(ArchiveOpenTest, OpensWhatPyTorchWrites) {
  for (const char* name : {"model.pt", "model.ptl", "classes.pt", "lowered.pt", "lowered.ptl",
                           "twice.pt", "twice.ptl"}) {
    SCOPED_TRACE(name);
    ExpectOpens(TestData(name));
  }
}

TEST(ArchiveOpenTest, RecordsAreWhereTheSaidOffsetIs) {
  const std::string bytes = TestData("model.pt");
  const auto archive = ModelArchive::Open(bytes);
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_EQ(archive->format_version(), 3);
  const ModelArchive::Record* weight = archive->Find("data/0");
  ASSERT_NE(weight, nullptr);
  ASSERT_EQ(weight->size, 24);
  float values[6];
  std::memcpy(values, bytes.data() + weight->offset, sizeof values);
  EXPECT_THAT(values, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  const ModelArchive::Record* code = archive->Find("code/__torch__.py");
  ASSERT_NE(code, nullptr);
  EXPECT_TRUE(code->compressed);
  EXPECT_THAT(*archive->Read(*code), HasSubstr("class Parent(Module):"));
  EXPECT_EQ(*archive->Read(*archive->Find("extra/notes.txt")), "hello");
  EXPECT_EQ(archive->Find("data/99"), nullptr);
}

TEST(ArchiveOpenTest, ReadsEveryKindOfZip) {
  for (const bool zip64 : {false, true}) {
    for (const bool descriptors : {false, true}) {
      ExpectOpens(WriteZip(MinimalModel(), {.zip64 = zip64, .descriptors = descriptors}));
    }
  }
}

TEST(ArchiveOpenTest, VersionMayStandInTheDataFolder) {
  ExpectOpens(WriteZip(With(Without(MinimalModel(), "version"), ".data/version", "10\n")));
}

TEST(ArchiveOpenTest, ReadFindsAWrongChecksum) {
  std::string bytes = TestData("model.pt");
  const size_t notes = ModelArchive::Open(bytes)->Find("extra/notes.txt")->offset;
  bytes[notes] ^= 1;
  const auto archive = ModelArchive::Open(bytes);
  ASSERT_TRUE(archive.ok()) << archive.status();
  const auto read = archive->Read(*archive->Find("extra/notes.txt"));
  EXPECT_TRUE(HasReason(read.status(), Reason::kModelCorrupt)) << read.status();
}

struct Foreign {
  std::string bytes;
  std::string what;
};

TEST(ArchiveOpenTest, SaysWhatAFileIsInstead) {
  const std::string zeros(64, '\0');
  std::string tar(512, '\0');
  tar.replace(257, 5, "ustar");
  const Foreign files[] = {
      {"", "is empty"},
      {TestData("state_dict.bin"), "a checkpoint (torch.save"},
      {TestData("state_dict_old.bin"), "torch.save in its format before PyTorch 1.6"},
      {WriteZip({{"archive/data.pkl", "}X_modules_of.weight."}}), "a checkpoint"},
      {TestData("module.bin"), "a pickled Python module (torch.save(model))"},
      {TestData("model.ff"), "a lite-interpreter flatbuffer"},
      {tar, "a tar file"},
      {"\x80\x04\x95" + zeros, "a Python pickle"},
      {"cposix\nsystem\n(S'true'\ntR.", "a Python pickle"},
      {std::string("\x08\x07\x12\x07pytorch\x1a\x05") + zeros, "an ONNX model"},
      {std::string("\x08\x01\x12\x0a") + zeros, "a TensorFlow SavedModel"},
      {std::string("\x02\0\0\0\0\0\0\0{} ", 11) + zeros, "a safetensors file"},
      {"\x89HDF\r\n\x1a\n" + zeros, "an HDF5 file"},
      {std::string("\x1c\0\0\0TFL3", 8) + zeros, "a TensorFlow Lite model"},
      {"\x1f\x8b\x08" + zeros, "a gzip file"},
      {"<!DOCTYPE html>", "an XML or HTML document"},
      {"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"},
      {"just a note\n", "a text file"},
      {"\x01\x02\x03" + zeros, "of no format that lowerd knows"},
      {WriteZip({{"readme.txt", "hello"}}), "a plain zip file"},
      {WriteZip({}), "a plain zip file"},
      {WriteZip({{"a/x", ""}, {"b/y", ""}}), "a plain zip file"},
      {WriteZip({{"weights.npy", ""}}), "a NumPy file"},
      {WriteZip({{"p/.data/extern_modules", ""}, {"p/a.py", ""}}), "a torch.package file"},
      {WriteZip({{"p/models/model.json", ""}, {"p/data/weights/w", ""}}), "torch.export"},
  };
  for (const Foreign& file : files) {
    ExpectRefused(file.bytes, "MODEL_NOT_TORCHSCRIPT", file.what);
    ExpectRefused(file.bytes, "MODEL_NOT_TORCHSCRIPT", "torch.jit.script(model).save(");
  }
}

TEST(ArchiveOpenTest, EveryTruncationIsRefused) {
  const std::string bytes = TestData("model.pt");
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto archive = ModelArchive::Open(absl::string_view(bytes).substr(0, size));
    ASSERT_FALSE(archive.ok()) << size;
    ASSERT_EQ(ReasonOf(archive.status()), size < 4 ? "MODEL_NOT_TORCHSCRIPT" : "MODEL_CORRUPT");
  }
}

TEST(ArchiveOpenTest, MissingRecordsAreNamed) {
  ExpectCorrupt(WriteZip(Without(MinimalModel(), "data.pkl")), "\"data.pkl\" is missing");
  ExpectCorrupt(WriteZip(Without(MinimalModel(), "constants.pkl")), "\"constants.pkl\" is missing");
  ExpectCorrupt(WriteZip(Without(MinimalModel(), "code/__torch__.py")), "\"code/\"");
  ExpectCorrupt(WriteZip(Without(MinimalModel(), "version")), "\"version\" is missing");
}

TEST(ArchiveOpenTest, VersionIsCheckedAgainstTheLoader) {
  ExpectRefused(WriteZip(With(MinimalModel(), "version", "99")), "MODEL_TOO_NEW",
                "version 99, this server reads up to 10");
  ExpectRefused(WriteZip(MinimalModel()), "MODEL_TOO_NEW", "version 3, this server reads up to 2",
                {.max_format_version = 2});
  for (const char* version : {"", "0", "-1", "three", "99999999999999999999"}) {
    ExpectCorrupt(WriteZip(With(MinimalModel(), "version", version)), "\"version\" is \"");
  }
}

TEST(ArchiveOpenTest, NamesMustBeUniqueAndRelative) {
  std::vector<ZipRecord> twice = MinimalModel();
  twice.push_back(twice.front());
  ExpectCorrupt(WriteZip(twice), "\"m/data.pkl\" is there twice");
  for (const std::string& name : {std::string("/etc/passwd"), std::string("m/../../x"),
                                  std::string("m\\x"), std::string("m/a\0b", 5), std::string()}) {
    std::vector<ZipRecord> records = MinimalModel();
    records.push_back({name, ""});
    ExpectCorrupt(WriteZip(records), "has an unsafe name");
  }
}

TEST(ArchiveOpenTest, LocalHeadersMustAgreeWithTheDirectory) {
  const std::string zip = WriteZip(MinimalModel());
  ExpectCorrupt(Patched<uint8_t>(zip, kLocal, 0, 30, 'x'), "directory entry disagree");
  ExpectCorrupt(Patched<uint16_t>(zip, kLocal, 0, 8, 8), "directory entry disagree");
  ExpectCorrupt(Patched<uint32_t>(zip, kLocal, 0, 14, 1), "directory entry disagree");
  ExpectCorrupt(Patched<uint32_t>(zip, kLocal, 0, 22, 1), "directory entry disagree");
  ExpectCorrupt(Patched<uint32_t>(zip, kCentral, 1, 42, 3), "not where the directory says");
  ExpectCorrupt(Patched<uint32_t>(zip, kCentral, 1, 42, 0x7fffffff), "not where the directory");
}

TEST(ArchiveOpenTest, RecordsMustLieInTheFileAndApart) {
  const std::string zip = WriteZip(MinimalModel(), {.descriptors = true});
  std::string long_one = Patched<uint32_t>(zip, kCentral, 0, 20, 60);
  ExpectCorrupt(Patched<uint32_t>(long_one, kCentral, 0, 24, 60), "records overlap");
  long_one = Patched<uint32_t>(zip, kCentral, 0, 20, 1 << 20);
  ExpectCorrupt(Patched<uint32_t>(long_one, kCentral, 0, 24, 1 << 20), "file does not hold");
}

TEST(ArchiveOpenTest, EncryptedAndUnknownCompressionAreRefused) {
  const std::string zip = WriteZip(MinimalModel());
  ExpectCorrupt(Patched<uint16_t>(zip, kCentral, 0, 8, 1), "is encrypted");
  ExpectCorrupt(Patched<uint16_t>(zip, kCentral, 0, 10, 14), "unknown method 14");
}

TEST(ArchiveOpenTest, BombsAreRefusedWithoutInflatingThem) {
  std::vector<ZipRecord> bomb = Without(MinimalModel(), "code/__torch__.py");
  bomb.push_back({"m/code/__torch__.py", std::string(8 << 20, '\0'), /*deflate=*/true});
  ExpectCorrupt(WriteZip(bomb), "to 8388608, which no model needs");
  ExpectRefused(WriteZip(MinimalModel()), "MODEL_CORRUPT", "which no model needs",
                {.max_inflated_bytes = 10});
}

// The sum of sizes once went below zero, and the limit with it.
TEST(ArchiveOpenTest, ImpossibleSizesAreRefused) {
  const std::string zip = WriteZip(MinimalModel(), {.zip64 = true});
  // Behind the second entry's 46 bytes and name: the extra field's size.
  const size_t extra = 46 + std::strlen("m/code/__torch__.py") + 4;
  ExpectCorrupt(Patched<uint64_t>(zip, kCentral, 1, extra, ~uint64_t{0}), "impossible size");
}

TEST(ArchiveOpenTest, RecordsAreBounded) {
  ExpectRefused(WriteZip(MinimalModel()), "MODEL_CORRUPT", "it has 4 records; at most 3",
                {.max_records = 3});
  ExpectRefused(WriteZip(MinimalModel()), "MODEL_CORRUPT", "\"data.pkl\" has 20 bytes; at most 10",
                {.max_pickle_bytes = 10});
}

}  // namespace
}  // namespace lowerd::lowering
