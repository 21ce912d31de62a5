#include <random>

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/lowering/artifact_verifier.h"
#include "src/lowering/model_archive.h"
#include "test/lowering/archive_testdata.h"
#include "test/lowering/zip_writer.h"

namespace lowerd::lowering {
namespace {

constexpr int kRounds = 3000;

// Opened, and all of it read, or refused for a reason that a user can act on.
void ExpectJudged(const std::string& bytes) {
  const auto archive = ModelArchive::Open(bytes);
  if (archive.ok()) {
    for (const ModelArchive::Record& record : archive->records()) {
      const auto content = archive->Read(record);
      ASSERT_TRUE(content.ok() || HasReason(content.status(), Reason::kModelCorrupt));
    }
    return;
  }
  const std::string reason = ReasonOf(archive.status());
  ASSERT_TRUE(reason == "MODEL_CORRUPT" || reason == "MODEL_NOT_TORCHSCRIPT" ||
              reason == "MODEL_TOO_NEW")
      << archive.status();
}

class ArchiveMutationTest : public testing::TestWithParam<const char*> {};

TEST_P(ArchiveMutationTest, FlippedBytesAreJudged) {
  const std::string original = TestData(GetParam());
  std::mt19937 random(20'240'501);
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = original;
    for (size_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    }
    ExpectJudged(bytes);
    const auto artifact = ReadArtifact(v1::LITE_BYTECODE, bytes);
    ASSERT_TRUE(artifact.ok() || HasReason(artifact.status(), Reason::kVerificationFailed));
  }
}

// Records stay whole and have right checksums, so that the pickles inside are reached.
TEST_P(ArchiveMutationTest, MutatedAndSwappedRecordsAreJudged) {
  const std::string original = TestData(GetParam());
  const auto archive = ModelArchive::Open(original);
  ASSERT_TRUE(archive.ok()) << archive.status();
  std::vector<ZipRecord> records;
  for (const ModelArchive::Record& record : archive->records()) {
    records.push_back({"m/" + record.name, *archive->Read(record), record.compressed});
  }
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<ZipRecord> mutated = records;
    ZipRecord& one = mutated[random() % mutated.size()];
    if (round % 8 == 0) {
      std::swap(one.data, mutated[random() % mutated.size()].data);
    } else if (!one.data.empty()) {
      one.data[random() % one.data.size()] ^= static_cast<char>(1 + random() % 255);
    }
    ExpectJudged(WriteZip(mutated));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ArchiveMutationTest,
                         testing::Values("model.pt", "model.ptl", "classes.pt", "lowered.ptl"),
                         [](const auto& file) {
                           std::string name = file.param;
                           name[name.find('.')] = '_';
                           return name;
                         });

TEST(FlatbufferMutationTest, FlippedBytesAreJudged) {
  const std::string original = TestData("lowered.ff");
  std::mt19937 random(11);
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = original;
    if (round % 16 == 0) bytes.resize(random() % bytes.size());
    for (size_t flips = 1 + random() % 4; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    }
    const auto artifact = ReadArtifact(v1::FLATBUFFER, bytes);
    ASSERT_TRUE(artifact.ok() || HasReason(artifact.status(), Reason::kVerificationFailed));
  }
}

}  // namespace
}  // namespace lowerd::lowering
