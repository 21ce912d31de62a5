#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "server/remote_blob_store.h"
#include "src/base/error.h"
#include "src/blob/disk_blob_store.h"
#include "test/server/cas_server.h"
#include "test/support/temp_dir.h"

// What every blob store must do, whichever it is: on disk, in memory (a directory of a tmpfs), or
// in another server.

namespace lowerd::blob {
namespace {

constexpr int64_t kMaxBlob = 64 << 20;

// A store and all that it stands on.
class Backing {
 public:
  virtual ~Backing() = default;
  virtual BlobStore& store() = 0;
};

std::unique_ptr<DiskBlobStore> OpenDisk(const std::string& directory) {
  DiskBlobStore::Options options;
  options.directory = directory;
  options.max_blob_bytes = kMaxBlob;
  options.fsync = false;
  auto store = DiskBlobStore::Create(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

class Disk final : public Backing {
 public:
  explicit Disk(const std::string& parent) : folder_(parent), store_(OpenDisk(folder_.File("b"))) {}
  BlobStore& store() override { return *store_; }

 private:
  const test::TempDir folder_;
  const std::unique_ptr<DiskBlobStore> store_;
};

class Remote final : public Backing {
 public:
  Remote() : far_(OpenDisk(folder_.File("far"))), server_(*far_) {
    server::RemoteBlobStore::Options options;
    options.remote.server = server_.address();
    options.cache.directory = folder_.File("cache");
    options.cache.max_blob_bytes = kMaxBlob;
    options.cache.fsync = false;
    store_ = *server::RemoteBlobStore::Create(options);
  }
  BlobStore& store() override { return *store_; }

 private:
  const test::TempDir folder_;
  const std::unique_ptr<DiskBlobStore> far_;
  const test::CasServer server_;
  std::unique_ptr<server::RemoteBlobStore> store_;
};

struct Kind {
  const char* name;
  std::unique_ptr<Backing> (*make)();
};

class BlobStoreTest : public testing::TestWithParam<Kind> {
 protected:
  BlobStore& store() { return backing_->store(); }
  bool Has(const Digest& digest) { return store().FindMissing({digest})->empty(); }

 private:
  const std::unique_ptr<Backing> backing_ = GetParam().make();
};

TEST_P(BlobStoreTest, GivesBackWhatWasPut) {
  for (const std::string& data :
       {std::string("hello"), std::string(1, '\0'), std::string(5'000'000, 'x')}) {
    const auto digest = PutBytes(store(), data);
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(*digest, Digest::Of(data));
    EXPECT_EQ(GetBytes(store(), *digest, 6'000'000).value(), data);
  }
}

TEST_P(BlobStoreTest, EmptyBlobAlwaysExists) {
  EXPECT_TRUE(Has(Digest()));
  EXPECT_EQ(*GetBytes(store(), Digest(), 1), "");
}

TEST_P(BlobStoreTest, FindMissingAnswersInOrder) {
  const Digest here = *PutBytes(store(), "here");
  const std::vector<Digest> asked = {Digest::Of("c"), here, Digest::Of("a"), Digest(),
                                     Digest::Of("b")};
  EXPECT_EQ(*store().FindMissing(asked),
            (std::vector<Digest>{Digest::Of("c"), Digest::Of("a"), Digest::Of("b")}));
  EXPECT_TRUE(store().FindMissing({})->empty());
}

TEST_P(BlobStoreTest, AbsentBlobsAreNamed) {
  const absl::Status opened = store().Open(Digest::Of("x")).status();
  EXPECT_TRUE(HasReason(opened, Reason::kBlobMissing)) << opened;
  const Digest here = *PutBytes(store(), "here");
  const absl::Status pinned = store().PinAll({here, Digest::Of("x")}).status();
  EXPECT_TRUE(HasReason(pinned, Reason::kBlobMissing)) << pinned;
  EXPECT_NE(pinned.message().find(Digest::Of("x").hex()), absl::string_view::npos) << pinned;
  EXPECT_TRUE(store().PinAll({here, Digest()}).ok());
}

TEST_P(BlobStoreTest, WrongBytesAreRefusedAndNothingBecomesVisible) {
  for (const char* id : {"", "id"}) {
    auto writer = *store().StartWrite(Digest::Of("right"), id);
    ASSERT_TRUE(writer->Append("wrong").ok());
    EXPECT_TRUE(HasReason(writer->Commit(), Reason::kDigestMismatch));
    EXPECT_FALSE(Has(Digest::Of("right")));
  }
  auto writer = *store().StartWrite(Digest::Of("right"), "id");
  EXPECT_EQ(writer->committed_size(), 0) << "the refused bytes were kept";
  ASSERT_TRUE(writer->Append("right").ok());
  EXPECT_TRUE(writer->Commit().ok());
}

TEST_P(BlobStoreTest, TooManyBytesAreRefusedAndTooFewDoNotCommit) {
  auto writer = *store().StartWrite(Digest::Of("abc"), "id");
  EXPECT_TRUE(HasReason(writer->Append("abcd"), Reason::kLimitExceeded));
  EXPECT_EQ(writer->committed_size(), 0);
  ASSERT_TRUE(writer->Append("ab").ok());
  EXPECT_TRUE(HasReason(writer->Commit(), Reason::kDigestMismatch));
}

TEST_P(BlobStoreTest, BlobOverTheLimitIsRefusedBeforeABytePasses) {
  const Digest huge(Digest::Of("huge").hash(), kMaxBlob + 1);
  EXPECT_TRUE(HasReason(store().StartWrite(huge, "id").status(), Reason::kLimitExceeded));
}

TEST_P(BlobStoreTest, CutUploadGoesOnWhereItStood) {
  const std::string data(3'000'000, 'x');
  const Digest digest = Digest::Of(data);
  auto writer = *store().StartWrite(digest, "id");
  ASSERT_TRUE(writer->Append(data.substr(0, 1'000'000)).ok());
  writer.reset();
  EXPECT_EQ(store().QueryWrite(digest, "id")->committed_size, 1'000'000);
  EXPECT_FALSE(store().QueryWrite(digest, "id")->complete);
  EXPECT_TRUE(HasReason(store().QueryWrite(digest, "other").status(), Reason::kResourceNotFound));
  EXPECT_FALSE(Has(digest));
  writer = *store().StartWrite(digest, "id");
  ASSERT_EQ(writer->committed_size(), 1'000'000);
  ASSERT_TRUE(writer->Append(data.substr(1'000'000)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_TRUE(store().QueryWrite(digest, "id")->complete);
  EXPECT_TRUE(store().QueryWrite(digest, "other")->complete);
  EXPECT_EQ(*GetBytes(store(), digest, 4'000'000), data);
}

TEST_P(BlobStoreTest, NewestConnectionOwnsAnUpload) {
  auto old = *store().StartWrite(Digest::Of("abc"), "id");
  ASSERT_TRUE(old->Append("a").ok());
  auto young = *store().StartWrite(Digest::Of("abc"), "id");
  EXPECT_TRUE(HasReason(old->Append("b"), Reason::kOperationState));
  EXPECT_TRUE(HasReason(old->Commit(), Reason::kOperationState));
  ASSERT_TRUE(young->Append("bc").ok());
  EXPECT_TRUE(young->Commit().ok());
}

TEST_P(BlobStoreTest, AdoptsFinishedFiles) {
  for (int i = 0; i < 2; ++i) {
    Fd file = *store().CreateTemporary();
    ASSERT_TRUE(WriteAll(file.get(), "artifact").ok());
    EXPECT_EQ(*store().Adopt(std::move(file)), Digest::Of("artifact"));
  }
  EXPECT_EQ(*GetBytes(store(), Digest::Of("artifact"), 100), "artifact");
  Fd elsewhere(::memfd_create("x", 0));
  ASSERT_TRUE(WriteAll(elsewhere.get(), "elsewhere").ok());
  EXPECT_EQ(*store().Adopt(std::move(elsewhere)), Digest::Of("elsewhere"));
  EXPECT_TRUE(Has(Digest::Of("elsewhere")));
}

TEST_P(BlobStoreTest, VerifiesWhatItHasAndMissesWhatItHasNot) {
  EXPECT_TRUE(store().Verify(*PutBytes(store(), "here")).ok());
  EXPECT_TRUE(HasReason(store().Verify(Digest::Of("absent")), Reason::kBlobMissing));
}

TEST_P(BlobStoreTest, ManyThreadsOnSameAndDifferentBlobs) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string data = "blob " + std::to_string(i % 2 == 0 ? i : i * 100 + t);
        const auto digest = PutBytes(store(), data);
        failures += !digest.ok() || GetBytes(store(), *digest, 100).value_or("") != data;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, BlobStoreTest,
    testing::Values(Kind{"Disk", [] { return std::unique_ptr<Backing>(new Disk("/var/tmp")); }},
                    Kind{"Memory", [] { return std::unique_ptr<Backing>(new Disk("/dev/shm")); }},
                    Kind{"Remote", [] { return std::unique_ptr<Backing>(new Remote); }}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace lowerd::blob
