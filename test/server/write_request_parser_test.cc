#include "server/write_request_parser.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "google/bytestream/bytestream.pb.h"
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

namespace lowerd::server {
namespace {

grpc::ByteBuffer Buffer(const std::string& bytes, size_t slice_size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_size) {
    slices.emplace_back(bytes.substr(at, slice_size));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(WriteRequestParserTest, AgreesWithProtobufWhateverTheSlices) {
  google::bytestream::WriteRequest message;
  message.set_resource_name("uploads/id/blobs/abc/3");
  message.set_write_offset(int64_t{5} << 32);
  message.set_finish_write(true);
  message.set_data(std::string(100'000, 'x') + "end");
  const std::string bytes = message.SerializeAsString();
  for (const size_t slice : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    grpc::ByteBuffer buffer = Buffer(bytes, slice);
    ParsedWriteRequest parsed;
    ASSERT_TRUE(ParseWriteRequest(buffer, &parsed)) << slice;
    EXPECT_EQ(parsed.resource_name, message.resource_name());
    EXPECT_EQ(parsed.write_offset, message.write_offset());
    EXPECT_EQ(parsed.finish_write, true);
    EXPECT_EQ(absl::StrJoin(parsed.data, ""), message.data());
  }
}

TEST(WriteRequestParserTest, TakesFieldsInAnyOrderAndFieldsOfTheFuture) {
  google::bytestream::WriteRequest data, name;
  data.set_data("abc");
  name.set_resource_name("n");
  const std::string future = std::string("\xa2\x06\x03xyz", 6) + std::string("\x98\x06\x05", 3);
  grpc::ByteBuffer buffer = Buffer(data.SerializeAsString() + future + name.SerializeAsString(), 3);
  ParsedWriteRequest parsed;
  ASSERT_TRUE(ParseWriteRequest(buffer, &parsed));
  EXPECT_EQ(parsed.resource_name, "n");
  EXPECT_EQ(absl::StrJoin(parsed.data, ""), "abc");
}

TEST(WriteRequestParserTest, DamagedMessagesAreRefusedAsProtobufRefusesThem) {
  google::bytestream::WriteRequest message;
  message.set_resource_name("uploads/id/blobs/abc/3");
  message.set_write_offset(300);
  message.set_data("some data");
  const std::string good = message.SerializeAsString();
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    if (i % 2 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    google::bytestream::WriteRequest reference;
    const bool expected = reference.ParseFromString(bytes);
    grpc::ByteBuffer buffer = Buffer(bytes, 1 + random() % 40);
    ParsedWriteRequest parsed;
    const bool got = ParseWriteRequest(buffer, &parsed);
    if (expected && got) {
      EXPECT_EQ(absl::StrJoin(parsed.data, ""), reference.data());
      EXPECT_EQ(parsed.write_offset, reference.write_offset());
    }
    // proto3 also checks that strings are UTF-8; resource names are checked by their own parser.
    EXPECT_TRUE(got || !expected) << i;
  }
}

}  // namespace
}  // namespace lowerd::server
