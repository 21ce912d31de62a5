#include "server/remote_blob_store.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "test/server/cas_server.h"
#include "test/support/temp_dir.h"

namespace lowerd::server {
namespace {

class RemoteBlobStoreTest : public testing::Test {
 protected:
  std::unique_ptr<blob::DiskBlobStore> OpenDisk(const std::string& name, int64_t limit = 0) {
    return *blob::DiskBlobStore::Create(DiskOptions(name, limit));
  }
  blob::DiskBlobStore::Options DiskOptions(const std::string& name, int64_t limit = 0) {
    blob::DiskBlobStore::Options options;
    options.directory = folder_.File(name);
    options.limit_bytes = limit;
    options.fsync = false;
    return options;
  }
  std::unique_ptr<RemoteBlobStore> Connect(const std::string& address, const std::string& cache,
                                           int64_t cache_limit = 0) {
    RemoteBlobStore::Options options;
    options.remote.server = address;
    options.remote.retries = 2;
    options.remote.maximum_backoff = absl::Milliseconds(200);
    options.cache = DiskOptions(cache, cache_limit);
    return *RemoteBlobStore::Create(options);
  }

  test::TempDir folder_;
};

TEST_F(RemoteBlobStoreTest, ReplicasSeeEachOthersBlobs) {
  const auto far = OpenDisk("far");
  const test::CasServer server(*far);
  const auto one = Connect(server.address(), "one"), two = Connect(server.address(), "two");
  const Digest digest = *blob::PutBytes(*one, "artifact");
  EXPECT_EQ(*blob::GetBytes(*two, digest, 100), "artifact");
  EXPECT_TRUE(two->PinAll({digest}).ok());
}

TEST_F(RemoteBlobStoreTest, UnreachableStoreIsNamedAndWorksWhenItIsBack) {
  const auto far = OpenDisk("far");
  auto server = std::make_unique<test::CasServer>(*far);
  const int port = server->port();
  const auto store = Connect(server->address(), "cache");
  const Digest digest = *blob::PutBytes(*store, "before");
  server.reset();
  for (const absl::Status& status :
       {store->FindMissing({digest}).status(), blob::PutBytes(*store, "during").status(),
        store->PinAll({digest}).status(), store->Open(Digest::Of("during")).status()}) {
    EXPECT_TRUE(HasReason(status, Reason::kServerUnavailable)) << status;
    EXPECT_NE(status.message().find(std::to_string(port)), absl::string_view::npos) << status;
  }
  server = std::make_unique<test::CasServer>(*far, port);
  EXPECT_TRUE(blob::PutBytes(*store, "during").ok());
  EXPECT_EQ(*blob::GetBytes(*far, Digest::Of("during"), 100), "during");
}

TEST_F(RemoteBlobStoreTest, UploadThatWasNotHandedOnIsHandedOnWhenTheClientAsks) {
  const auto far = OpenDisk("far");
  auto server = std::make_unique<test::CasServer>(*far);
  const int port = server->port();
  const auto store = Connect(server->address(), "cache");
  auto writer = *store->StartWrite(Digest::Of("upload"), "id");
  ASSERT_TRUE(writer->Append("upload").ok());
  server.reset();
  EXPECT_TRUE(HasReason(writer->Commit(), Reason::kServerUnavailable));
  server = std::make_unique<test::CasServer>(*far, port);
  EXPECT_TRUE(store->QueryWrite(Digest::Of("upload"), "id")->complete);
  EXPECT_EQ(*blob::GetBytes(*far, Digest::Of("upload"), 100), "upload");
}

TEST_F(RemoteBlobStoreTest, BlobThatTheRemoteStoreLostIsMissing) {
  const Digest digest = Digest::Of("lost");
  auto far = OpenDisk("far");
  auto server = std::make_unique<test::CasServer>(*far);
  const int port = server->port();
  const auto store = Connect(server->address(), "cache");
  ASSERT_TRUE(blob::PutBytes(*store, "lost").ok());
  server.reset();
  far = OpenDisk("empty");
  server = std::make_unique<test::CasServer>(*far, port);
  EXPECT_EQ(store->FindMissing({digest})->size(), 1u);
  EXPECT_TRUE(HasReason(store->PinAll({digest}).status(), Reason::kBlobMissing));
}

TEST_F(RemoteBlobStoreTest, DamagedBytesAreRefused) {
  const auto far = OpenDisk("far");
  const test::CasServer server(*far);
  const Digest digest = *blob::PutBytes(*far, "right");
  const std::string path = folder_.File("far/cas/") + digest.hex().substr(0, 2) + "/" +
                           digest.hex() + "-" + std::to_string(digest.size_bytes());
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  std::ofstream(path) << "wrong";
  const auto store = Connect(server.address(), "cache");
  const absl::Status status = store->Open(digest).status();
  EXPECT_TRUE(HasReason(status, Reason::kInternalError)) << status;
}

TEST_F(RemoteBlobStoreTest, CacheKeepsItsLimitAndFetchesAgain) {
  const auto far = OpenDisk("far");
  const test::CasServer server(*far);
  const auto store = Connect(server.address(), "cache", /*cache_limit=*/2500);
  std::vector<Digest> digests;
  for (char c = 'a'; c < 'k'; ++c) digests.push_back(*blob::PutBytes(*store, std::string(1000, c)));
  EXPECT_LE(store->GetStats().bytes, 2500);
  EXPECT_TRUE(store->FindMissing(digests)->empty());
  for (size_t i = 0; i < digests.size(); ++i) {
    EXPECT_EQ(*blob::GetBytes(*store, digests[i], 2000),
              std::string(1000, static_cast<char>('a' + i)));
  }
  EXPECT_LE(store->GetStats().bytes, 2500);
}

}  // namespace
}  // namespace lowerd::server
