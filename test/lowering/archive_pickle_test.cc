#include <cstdint>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/lowering/model_archive.h"
#include "src/lowering/pickle_machine.h"
#include "test/lowering/zip_writer.h"

namespace lowerd::lowering {
namespace {

using ::testing::HasSubstr;

std::string Raw(uint64_t value, size_t bytes) {
  return std::string(reinterpret_cast<const char*>(&value), bytes);
}
std::string Int(int64_t value) { return "\x8a\x08" + Raw(static_cast<uint64_t>(value), 8); }
std::string Text(const std::string& text) { return "X" + Raw(text.size(), 4) + text; }
std::string Global(const std::string& module, const std::string& name) {
  return absl::StrCat("c", module, "\n", name, "\n");
}
std::string Tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& item : items) out += item;
  return out + "t";
}
std::string Ints(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(Int(value));
  return Tuple(items);
}
std::string Storage(int64_t elements, const std::string& key = "0",
                    const std::string& type = "FloatStorage") {
  return Tuple({Text("storage"), Global("torch", type), Text(key), Text("cpu"), Int(elements)}) +
         "Q";
}
std::string Tensor(const std::string& storage, int64_t offset, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  return Global("torch._utils", "_rebuild_tensor_v2") +
         Tuple({storage, Int(offset), Ints(sizes), Ints(strides), "\x89",
                Global("collections", "OrderedDict") + ")R"}) +
         "R";
}

// A model of one attribute `value`, whose record data/0 holds six floats.
absl::Status Open(const std::string& value, const std::string& record = "data.pkl") {
  const std::string pickle =
      "\x80\x02" + Global("__torch__", "M") + ")\x81}" + Text("a") + value + "sb.";
  std::vector<ZipRecord> records = With(MinimalModel(), record, pickle);
  const std::string folder = record == "data.pkl" ? "m/data/0" : "m/constants/0";
  records.push_back({folder, std::string(24, '\0')});
  return ModelArchive::Open(WriteZip(records)).status();
}

void ExpectCorrupt(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(ReasonOf(status), "MODEL_CORRUPT") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(ArchiveTensorTest, TensorsThatFitAreAccepted) {
  EXPECT_EQ(Open(Tensor(Storage(6), 0, {2, 3}, {3, 1})), absl::OkStatus());
  EXPECT_EQ(Open(Tensor(Storage(6), 5, {}, {})), absl::OkStatus());
  EXPECT_EQ(Open(Tensor(Storage(6), 0, {1'000'000}, {0})), absl::OkStatus());
  EXPECT_EQ(Open(Tensor(Storage(6), 6, {0, 5}, {5, 1})), absl::OkStatus());
  EXPECT_EQ(Open(Tensor(Storage(3, "0", "LongStorage"), 0, {3}, {1})), absl::OkStatus());
  EXPECT_EQ(Open(Tensor(Storage(6), 0, {6}, {1}), "constants.pkl"), absl::OkStatus());
}

TEST(ArchiveTensorTest, AnEmptyStorageNeedsNoRecord) {
  EXPECT_EQ(Open(Tensor(Storage(0, "7"), 0, {0}, {1})), absl::OkStatus());
  ExpectCorrupt(Open(Tensor(Storage(1, "7"), 0, {1}, {1})), "\"data/7\" of a tensor is missing");
}

TEST(ArchiveTensorTest, StoragesMustFitIntoTheirRecords) {
  ExpectCorrupt(Open(Tensor(Storage(7), 0, {2}, {1})),
                "claims 7 elements of 4 bytes, but its record \"data/0\" holds 24 bytes");
  ExpectCorrupt(Open(Tensor(Storage(7), 0, {2}, {1}), "constants.pkl"), "\"constants/0\"");
  ExpectCorrupt(Open(Tensor(Storage(6, "0", "DoubleStorage"), 0, {2}, {1})), "of 8 bytes");
  ExpectCorrupt(Open(Tensor(Storage(INT64_MAX), 0, {2}, {1})), "claims 9223372036854775807");
  ExpectCorrupt(Open(Tensor(Storage(-1), 0, {2}, {1})), "not described as PyTorch does");
}

TEST(ArchiveTensorTest, TensorsMustFitIntoTheirStorages) {
  const std::string beyond = "reaches beyond its storage of 6 elements";
  ExpectCorrupt(Open(Tensor(Storage(6), 0, {7}, {1})), beyond);
  ExpectCorrupt(Open(Tensor(Storage(6), 1, {2, 3}, {3, 1})), beyond);
  ExpectCorrupt(Open(Tensor(Storage(6), 0, {2}, {6})), beyond);
  ExpectCorrupt(Open(Tensor(Storage(6), -1, {2}, {1})), beyond);
  ExpectCorrupt(Open(Tensor(Storage(6), 0, {int64_t{1} << 62, 4}, {4, 1})), beyond);
  ExpectCorrupt(Open(Tensor(Storage(6), INT64_MAX, {2, 2}, {1, 1})), beyond);
  ExpectCorrupt(Open(Tensor(Storage(6), 0, {-2}, {1})), "negative size or stride");
  ExpectCorrupt(Open(Tensor(Storage(6), 0, {2}, {-1})), "negative size or stride");
  ExpectCorrupt(Open(Tensor(Storage(6), 0, {2, 3}, {1})), "not described as PyTorch does");
  ExpectCorrupt(Open(Tensor("N", 0, {2}, {1})), "not described as PyTorch does");
  ExpectCorrupt(
      Open(Tensor(Storage(6), 0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1))),
      "65 dimensions");
}

// A tensor was once looked at before the storage that a later BUILD slipped into its arguments.
TEST(ArchiveTensorTest, StateCannotChangeTheArgumentsOfATensor) {
  const std::string late = Global("torch._utils", "_rebuild_tensor_v2") + ")q" + Raw(0, 1) + "R0h" +
                           Raw(0, 1) + Tuple({Text("storage")}) + "Qb";
  ExpectCorrupt(Open(late), "gives state to what is no object");
}

TEST(ArchiveGlobalsTest, OnlyPyTorchsOwnNamesAndTheArchivesClassesMayBeNamed) {
  EXPECT_EQ(Open(Global("torch.jit._pickle", "build_intlist") + Tuple({"]"}) + "R"),
            absl::OkStatus());
  EXPECT_EQ(Open(Global("builtins", "complex") + Ints({1, 2}) + "R"), absl::OkStatus());
  ExpectCorrupt(Open(Global("posix", "system") + Tuple({Text("true")}) + "R"),
                "refers to \"posix.system\"");
  ExpectCorrupt(Open(Global("builtins", "eval") + Tuple({Text("1")}) + "R"),
                "refers to \"builtins.eval\"");
  ExpectCorrupt(Open(Global("collections", "Counter") + ")R"), "\"collections.Counter\"");
  ExpectCorrupt(Open(Global("os", "system"), "constants.pkl"), "constants.pkl refers to");
}

void ExpectBad(const std::string& pickle, const std::string& message) {
  const auto values = PickleValues::Parse(pickle, "data.pkl");
  EXPECT_EQ(ReasonOf(values.status()), "MODEL_CORRUPT") << values.status();
  EXPECT_THAT(std::string(values.status().message()), HasSubstr(message));
}

TEST(ArchivePickleTest, ReadsEveryKindOfValue) {
  const std::string pickle = "\x80\x02" +
                             Tuple({"N", "\x88", "K\x07", "M\x01\x02", "J" + Raw(0xffffffff, 4),
                                    "\x8a\x01\xff", "G" + Raw(0, 8), Text("text"), "]q" + Raw(0, 1),
                                    "](K\x01K\x02"
                                    "e",
                                    "}" + Text("k") + "K\x03s", "h" + Raw(0, 1)}) +
                             ".";
  const auto values = PickleValues::Parse(pickle, "data.pkl");
  ASSERT_TRUE(values.ok()) << values.status();
  const PickleValues::Value& root = values->root();
  ASSERT_EQ(root.items.size(), 12);
  auto number = [&](size_t i) { return values->at(root.items[i]).number; };
  EXPECT_EQ(number(1), 1);
  EXPECT_EQ(number(2), 7);
  EXPECT_EQ(number(3), 513);
  EXPECT_EQ(number(4), -1);
  EXPECT_EQ(number(5), -1);
  EXPECT_EQ(values->at(root.items[7]).text, "text");
  EXPECT_EQ(values->at(root.items[9]).items.size(), 2);
  EXPECT_EQ(values->at(root.items[10]).kind, PickleValues::Kind::kDict);
  EXPECT_EQ(root.items[8], root.items[11]);
}

TEST(ArchivePickleTest, MalformedPicklesAreRefused) {
  ExpectBad("", "ends without STOP");
  ExpectBad(".", "does not end in one value");
  ExpectBad("NN.", "does not end in one value");
  ExpectBad("(N.", "does not end in one value");
  ExpectBad("X" + Raw(0xffffffff, 4) + "abc.", "string that is cut off");
  ExpectBad("t.", "tuple without a mark");
  ExpectBad("N\x86.", "takes more values than there are");
  ExpectBad("N(\x85.", "takes more values than there are");
  ExpectBad("NNa.", "adds to what is no container");
  ExpectBad("(e.", "adds to nothing");
  ExpectBad("h\x05.", "recalls what it never memoized");
  ExpectBad("R.", "calls nothing");
  ExpectBad("Q.", "no persistent id");
  ExpectBad("cos\nsystem", "name that is cut off");
  ExpectBad("i.", "which TorchScript never writes");
}

// PyTorch allocates its memo up to the number that it reads.
TEST(ArchivePickleTest, MemosAreNumberedOneByOne) {
  ExpectBad("Nr" + Raw(0xffffffff, 4) + ".", "far number 4294967295");
  ExpectBad("Nq\x01.", "far number 1");
}

TEST(ArchivePickleTest, ValuesAreBounded) {
  ExpectBad(std::string(10'000'001, 'N'), "more than 10000000 values");
}

}  // namespace
}  // namespace lowerd::lowering
