#include "src/rpc/resource_name.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::rpc {
namespace {

const Digest kBlob = Digest::Of("abc");

TEST(ResourceNameTest, ParsesWhatItPrints) {
  for (const char* instance : {"", "main", "farm/eu/1"}) {
    for (Compression compression : {Compression::kIdentity, Compression::kZstd}) {
      ResourceName name{instance, "", compression, kBlob};
      auto read = ResourceName::ParseRead(name.ToString());
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->ToString(), name.ToString());
      name.upload_id = "0f8fad5b-d9cb-469f-a165-70867728950e";
      auto write = ResourceName::ParseWrite(name.ToString());
      ASSERT_TRUE(write.ok()) << write.status();
      EXPECT_EQ(write->ToString(), name.ToString());
      EXPECT_EQ(write->instance, instance);
    }
  }
}

TEST(ResourceNameTest, WriteNamesMayEndInTheClientsOwnMetadata) {
  auto name = ResourceName::ParseWrite("uploads/id/blobs/" + kBlob.ToString() + "/dir/file.pt");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->digest, kBlob);
}

TEST(ResourceNameTest, RefusesWhatIsMalformed) {
  const std::string blob = kBlob.ToString();
  for (const std::string& name :
       {std::string(), std::string("blobs"), "blobs/" + kBlob.hex(), "blobs/" + blob + "/more",
        "blobs/" + kBlob.hex() + "/x", "blobs/" + kBlob.hex() + "/-1", "blob/" + blob,
        "uploads/id/blobs/" + blob, std::string("blobs/zz/3"), std::string(100000, '/')}) {
    EXPECT_TRUE(HasReason(ResourceName::ParseRead(name).status(), Reason::kInvalidRequest)) << name;
  }
  for (const std::string& name : {"blobs/" + blob, "uploads//blobs/" + blob, "uploads/id/" + blob,
                                  std::string("uploads"), "operations/uploads/id/blobs/" + blob}) {
    EXPECT_TRUE(HasReason(ResourceName::ParseWrite(name).status(), Reason::kInvalidRequest))
        << name;
  }
}

TEST(ResourceNameTest, RefusesEndlessNames) {
  const std::string end = "uploads/id/blobs/" + std::string(64, 'a') + "/1";
  EXPECT_TRUE(ResourceName::ParseWrite("an/instance/" + end).ok());
  EXPECT_FALSE(ResourceName::ParseWrite(std::string(5000, 'x') + "/" + end).ok());
}

TEST(ResourceNameTest, SaysWhatIsNotSupported) {
  EXPECT_TRUE(
      HasReason(ResourceName::ParseRead("compressed-blobs/deflate/" + kBlob.ToString()).status(),
                Reason::kNotSupported));
  EXPECT_TRUE(HasReason(ResourceName::ParseRead("blobs/blake3/" + kBlob.ToString()).status(),
                        Reason::kNotSupported));
}

}  // namespace
}  // namespace lowerd::rpc
