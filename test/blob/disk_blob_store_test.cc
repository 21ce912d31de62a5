#include "src/blob/disk_blob_store.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "src/base/error.h"
#include "test/support/temp_dir.h"

namespace lowerd::blob {
namespace {

class DiskBlobStoreTest : public testing::Test {
 protected:
  std::unique_ptr<DiskBlobStore> Open(int64_t limit = 0, bool fsync = false) {
    DiskBlobStore::Options options;
    options.directory = folder_.File("blobs");
    options.limit_bytes = limit;
    options.fsync = fsync;
    auto store = DiskBlobStore::Create(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  bool Has(BlobStore& store, const Digest& digest) { return store.FindMissing({digest})->empty(); }

  test::TempDir folder_;
};

TEST_F(DiskBlobStoreTest, StoresReadsAndSurvivesARestart) {
  const Digest digest = *PutBytes(*Open(0, /*fsync=*/true), "hello");
  EXPECT_EQ(digest, Digest::Of("hello"));
  auto store = Open();
  EXPECT_EQ(*GetBytes(*store, digest, 100), "hello");
  EXPECT_EQ(store->GetStats().bytes, 5);
}

TEST_F(DiskBlobStoreTest, CutUploadGoesOnWhereItStoodAlsoAfterARestart) {
  const std::string data(3'000'000, 'x');
  const Digest digest = Digest::Of(data);
  {
    auto store = Open();
    auto writer = *store->StartWrite(digest, "id");
    ASSERT_TRUE(writer->Append(data.substr(0, 1'000'000)).ok());
    writer.reset();
    EXPECT_EQ(store->QueryWrite(digest, "id")->committed_size, 1'000'000);
    EXPECT_TRUE(HasReason(store->QueryWrite(digest, "other").status(), Reason::kResourceNotFound));
    writer = *store->StartWrite(digest, "id");
    ASSERT_TRUE(writer->Append(data.substr(1'000'000, 500'000)).ok());
  }
  auto store = Open();
  EXPECT_EQ(store->QueryWrite(digest, "id")->committed_size, 1'500'000);
  auto writer = *store->StartWrite(digest, "id");
  ASSERT_EQ(writer->committed_size(), 1'500'000);
  ASSERT_TRUE(writer->Append(data.substr(1'500'000)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_TRUE(store->QueryWrite(digest, "id")->complete);
  EXPECT_EQ(*GetBytes(*store, digest, 4'000'000), data);
}

TEST_F(DiskBlobStoreTest, EvictsTheLeastRecentlyUsedAndNeverWhatIsPinned) {
  auto store = Open(/*limit=*/3000);
  const Digest a = *PutBytes(*store, std::string(1000, 'a'));
  const Digest b = *PutBytes(*store, std::string(1000, 'b'));
  const Digest c = *PutBytes(*store, std::string(1000, 'c'));
  auto pin = *store->PinAll({b});
  // Asking for a blob is a use.
  EXPECT_TRUE(Has(*store, a));
  ASSERT_TRUE(PutBytes(*store, std::string(1000, 'd')).ok());
  EXPECT_FALSE(Has(*store, c));
  EXPECT_TRUE(Has(*store, a));
  EXPECT_TRUE(Has(*store, b));
  // Only two can go.
  EXPECT_TRUE(HasReason(PutBytes(*store, std::string(2500, 'e')).status(), Reason::kStoreFull));
  pin.reset();
  EXPECT_TRUE(PutBytes(*store, std::string(2500, 'e')).ok());
  EXPECT_FALSE(Has(*store, b));
  EXPECT_LE(store->GetStats().bytes, 3000);
}

TEST_F(DiskBlobStoreTest, BytesOfUploadsUnderWayCount) {
  auto store = Open(/*limit=*/1500);
  auto writer = *store->StartWrite(Digest::Of(std::string(1000, 'a')), "id");
  EXPECT_TRUE(HasReason(PutBytes(*store, std::string(1000, 'b')).status(), Reason::kStoreFull));
  writer.reset();
  EXPECT_TRUE(PutBytes(*store, std::string(1000, 'b')).ok());
}

TEST_F(DiskBlobStoreTest, InterruptedUploadsCountAndGoBeforeYoungerBlobsAreRefused) {
  const auto interrupt = [](BlobStore& store, char c) {
    auto writer = store.StartWrite(Digest::Of(std::string(1000, c)), std::string(1, c));
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(std::string(900, c)).ok());
  };
  const auto on_disk = [this] {
    int64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.File("blobs"))) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  };
  {
    auto store = Open(/*limit=*/3000);
    for (char c = 'a'; c < 'k'; ++c) interrupt(*store, c);
    EXPECT_LE(on_disk(), 3000);
    // The last ones can be resumed, the first cannot.
    EXPECT_EQ(store->QueryWrite(Digest::Of(std::string(1000, 'j')), "j")->committed_size, 900);
    EXPECT_FALSE(store->QueryWrite(Digest::Of(std::string(1000, 'a')), "a").ok());
  }
  // They count after a restart, too.
  auto store = Open(/*limit=*/3000);
  ASSERT_TRUE(PutBytes(*store, std::string(1500, 'x')).ok());
  ASSERT_TRUE(PutBytes(*store, std::string(1500, 'y')).ok());
  EXPECT_LE(on_disk(), 3000);
  EXPECT_TRUE(Has(*store, Digest::Of(std::string(1500, 'y'))));
}

TEST_F(DiskBlobStoreTest, AbandonedUploadsExpireWhileTheServerRuns) {
  const Digest digest = Digest::Of("abandoned");
  DiskBlobStore::Options options;
  options.directory = folder_.File("blobs");
  options.upload_expiry = absl::ZeroDuration();
  auto store = *DiskBlobStore::Create(options);
  ASSERT_TRUE((*store->StartWrite(digest, "id"))->Append("aban").ok());
  store.reset();
  store = *DiskBlobStore::Create(options);
  ASSERT_TRUE(PutBytes(*store, "another").ok());
  EXPECT_FALSE(store->QueryWrite(digest, "id").ok());
}

TEST_F(DiskBlobStoreTest, SecondStoreOnOneDirectoryIsRefused) {
  auto store = Open();
  DiskBlobStore::Options options;
  options.directory = folder_.File("blobs");
  const absl::Status second = DiskBlobStore::Create(options).status();
  EXPECT_TRUE(HasReason(second, Reason::kOperationState)) << second;
}

TEST_F(DiskBlobStoreTest, OpenFileStaysReadableWhenItsBlobIsEvicted) {
  auto store = Open(/*limit=*/1500);
  const Digest a = *PutBytes(*store, std::string(1000, 'a'));
  const Fd fd = *store->Open(a);
  ASSERT_TRUE(PutBytes(*store, std::string(1000, 'b')).ok());
  EXPECT_FALSE(Has(*store, a));
  EXPECT_EQ(*ReadFileToString(fd.get(), 2000), std::string(1000, 'a'));
}

TEST_F(DiskBlobStoreTest, StrangeFilesAreMovedAside) {
  Open();
  const std::string folder = folder_.File("blobs/cas/aa");
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/rubbish") << "x";
  std::ofstream(folder_.File("blobs/cas/stray")) << "x";
  std::ofstream(folder + "/" + Digest::Of("x").hex() + "-1") << "in the wrong folder";
  auto store = Open();
  EXPECT_EQ(store->quarantined(), 3);
  EXPECT_TRUE(std::filesystem::exists(folder_.File("blobs/quarantine/rubbish")));
  EXPECT_FALSE(Has(*store, Digest::Of("x")));
}

TEST_F(DiskBlobStoreTest, WriteThatTheDiskRefusesLeavesNothingHalfWritten) {
  // A file-size limit is a disk that is full at 1 MiB, for this process alone.
  const std::string data(4 << 20, 'x');
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    DiskBlobStore::Options options;
    options.directory = folder_.File("blobs");
    auto store = DiskBlobStore::Create(options);
    auto writer = (*store)->StartWrite(Digest::Of(data), "id");
    const bool refused = !(*writer)->Append(data).ok() && (*writer)->committed_size() == 0;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  auto store = Open();
  EXPECT_FALSE(Has(*store, Digest::Of(data)));
  EXPECT_TRUE(PutBytes(*store, data).ok());
}

TEST_F(DiskBlobStoreTest, KilledInTheMiddleOfCommitsItHoldsOnlyCompleteBlobs) {
  constexpr unsigned kSeed = 20261201;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 10; ++round) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto store = Open(0, /*fsync=*/true);
      for (int i = 0;; ++i) {
        const std::string data =
            std::to_string(round) + "/" + std::to_string(i) + std::string(50'000, 'x');
        auto writer = store->StartWrite(Digest::Of(data), std::to_string(i));
        (void)(*writer)->Append(data);
        (void)(*writer)->Commit();
      }
    }
    ::usleep(20'000 + random() % 30'000);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    auto store = Open();
    EXPECT_EQ(store->quarantined(), 0);
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(folder_.File("blobs/cas"))) {
      if (!entry.is_regular_file()) continue;
      const std::string bytes = *ReadFileToString(entry.path().string(), 1 << 20);
      const Digest digest = Digest::Of(bytes);
      EXPECT_EQ(entry.path().filename().string(),
                digest.hex() + "-" + std::to_string(digest.size_bytes()))
          << "seed " << kSeed;
    }
  }
}

TEST_F(DiskBlobStoreTest, NothingIsEvictedForWhatCannotFit) {
  auto store = Open(/*limit=*/3000);
  const Digest a = *PutBytes(*store, std::string(1000, 'a'));
  EXPECT_TRUE(HasReason(store->StartWrite(Digest::Of(std::string(5000, 'x')), "id").status(),
                        Reason::kStoreFull));
  EXPECT_TRUE(Has(*store, a));
}

TEST_F(DiskBlobStoreTest, BlobThatWasCutOffIsMovedAsideWhenItIsOpened) {
  const Digest digest = *PutBytes(*Open(), "hello");
  const std::string path =
      folder_.File("blobs/cas/") + digest.hex().substr(0, 2) + "/" + digest.hex() + "-5";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  std::filesystem::resize_file(path, 2);
  auto store = Open();
  EXPECT_TRUE(HasReason(store->Open(digest).status(), Reason::kBlobMissing));
  EXPECT_FALSE(Has(*store, digest));
}

TEST_F(DiskBlobStoreTest, DamagedBlobsAreFoundPutAsideAndMadeGoodAgain) {
  auto store = Open();
  const Digest digest = *PutBytes(*store, "hello");
  const std::string path =
      folder_.File("blobs/cas/") + digest.hex().substr(0, 2) + "/" + digest.hex() + "-5";
  const auto damage = [&] {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    std::ofstream(path) << "jello";
  };
  damage();
  EXPECT_TRUE(HasReason(store->Verify(digest), Reason::kBlobMissing));
  EXPECT_FALSE(Has(*store, digest));
  EXPECT_EQ(store->quarantined(), 1);
  ASSERT_TRUE(PutBytes(*store, "hello").ok());
  EXPECT_TRUE(store->Verify(digest).ok());
  // A job that makes the same artifact again makes it good, too.
  damage();
  Fd file = *store->CreateTemporary();
  ASSERT_TRUE(WriteAll(file.get(), "hello").ok());
  EXPECT_EQ(*store->Adopt(std::move(file)), digest);
  EXPECT_EQ(*GetBytes(*store, digest, 100), "hello");
  EXPECT_EQ(store->GetStats().bytes, 5);
}

TEST_F(DiskBlobStoreTest, PinsOfADamagedBlobDoNotCountForTheOneThatReplacesIt) {
  auto store = Open(/*limit=*/1500);
  const std::string data(1000, 'a');
  const Digest digest = *PutBytes(*store, data);
  auto old_pin = *store->PinAll({digest});
  const std::string path =
      folder_.File("blobs/cas/") + digest.hex().substr(0, 2) + "/" + digest.hex() + "-1000";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  std::ofstream(path) << std::string(1000, 'b');
  EXPECT_FALSE(store->Verify(digest).ok());
  ASSERT_TRUE(PutBytes(*store, data).ok());
  const auto new_pin = *store->PinAll({digest});
  old_pin.reset();
  EXPECT_TRUE(HasReason(PutBytes(*store, std::string(1000, 'c')).status(), Reason::kStoreFull));
  EXPECT_TRUE(Has(*store, digest));
}

TEST_F(DiskBlobStoreTest, TwoConnectionsOfOneUploadNeverPublishWrongBytes) {
  auto store = Open();
  for (int round = 0; round < 300; ++round) {
    const std::string data = "round " + std::to_string(round);
    std::vector<std::thread> threads;
    for (const std::string& bytes : {data, std::string(data.size(), '!')}) {
      threads.emplace_back([&store, &data, bytes] {
        auto writer = store->StartWrite(Digest::Of(data), "id");
        if (writer.ok() && (*writer)->committed_size() == 0 && (*writer)->Append(bytes).ok()) {
          (void)(*writer)->Commit();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(GetBytes(*store, Digest::Of(data), 100).value_or(data), data);
  }
}

}  // namespace
}  // namespace lowerd::blob
