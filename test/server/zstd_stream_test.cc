#include "server/zstd_stream.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

std::string Data(size_t size) {
  std::mt19937 random(7);
  std::string out;
  while (out.size() < size) out += std::string(1 + random() % 50, static_cast<char>(random()));
  out.resize(size);
  return out;
}

TEST(ZstdStreamTest, PiecesOfAnySizeGiveTheDataBack) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3'000'000}}) {
    const std::string data = Data(size);
    std::string compressed;
    ZstdCompressor compressor;
    for (size_t at = 0; at < data.size(); at += 700'001) {
      compressor.Write(absl::string_view(data).substr(at, 700'001), false, &compressed);
    }
    compressor.Write("", true, &compressed);
    for (const size_t step : {size_t{1000}, size_t{1} << 20}) {
      ZstdDecompressor decompressor;
      std::string back;
      for (size_t at = 0; at < compressed.size(); at += step) {
        ASSERT_TRUE(decompressor
                        .Write(absl::string_view(compressed).substr(at, step),
                               [&](absl::string_view bytes) {
                                 back.append(bytes.data(), bytes.size());
                                 return absl::OkStatus();
                               })
                        .ok());
      }
      EXPECT_TRUE(decompressor.complete());
      EXPECT_EQ(back, data);
    }
  }
}

TEST(ZstdStreamTest, RubbishAndCutDataAreToldFromGood) {
  auto ignore = [](absl::string_view) { return absl::OkStatus(); };
  EXPECT_TRUE(
      HasReason(ZstdDecompressor().Write("no zstd at all", ignore), Reason::kInvalidRequest));
  std::string compressed;
  ZstdCompressor().Write(Data(100'000), true, &compressed);
  ZstdDecompressor cut;
  EXPECT_TRUE(
      cut.Write(absl::string_view(compressed).substr(0, compressed.size() - 3), ignore).ok());
  EXPECT_FALSE(cut.complete());
}

TEST(ZstdStreamTest, SinksErrorStopsABombAtItsFirstPiece) {
  std::string bomb;
  ZstdCompressor().Write(std::string(50'000'000, '\0'), true, &bomb);
  ASSERT_LT(bomb.size(), 100'000u);
  int pieces = 0;
  const absl::Status status = ZstdDecompressor().Write(bomb, [&](absl::string_view) {
    ++pieces;
    return MakeError(Reason::kLimitExceeded, "too much");
  });
  EXPECT_TRUE(HasReason(status, Reason::kLimitExceeded));
  EXPECT_EQ(pieces, 1);
}

}  // namespace
}  // namespace lowerd::server
