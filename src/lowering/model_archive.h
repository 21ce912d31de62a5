#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lowerd::lowering {

// A TorchScript archive (zip) over bytes in memory, read without libtorch. Thread-compatible. Keeps
// a view of the bytes, which must outlive it.
class ModelArchive {
 public:
  struct Record {
    // Without the archive's top folder, for instance "data.pkl", "code/__torch__.py",
    // "extra/a.json".
    std::string name;
    int64_t size = 0;
    int64_t compressed_size = 0;
    // Of the (stored) bytes from the start of the file; compressed records have none to view.
    int64_t offset = 0;
    bool compressed = false;
    uint32_t crc32 = 0;
  };

  struct Limits {
    int max_records = 1'000'000;
    // Sum of uncompressed sizes of compressed records, and their largest ratio.
    int64_t max_inflated_bytes = int64_t{256} << 20;
    int max_ratio = 200;
    // Of data.pkl and of constants.pkl, which hold no tensor data.
    int64_t max_pickle_bytes = int64_t{256} << 20;
    // Newest archive format version that the loader knows.
    int64_t max_format_version = 10;
  };

  // Opens and checks everything that can be checked before libtorch sees the file: that it is a
  // zip, that central directory and local headers agree, that records lie inside the file and do
  // not overlap, names (no duplicates, no absolute paths, one top folder), sizes, compression, that
  // data.pkl, version and code are there, the format version, and that tensors declared in the
  // pickles fit into their records. MODEL_NOT_TORCHSCRIPT says what the file is instead (empty,
  // state_dict, pickled Python module, ONNX, plain zip, lite flatbuffer, ...) and how to export the
  // right thing; MODEL_CORRUPT what is damaged and where; MODEL_TOO_NEW the versions.
  static absl::StatusOr<ModelArchive> Open(absl::string_view bytes, const Limits& limits);
  static absl::StatusOr<ModelArchive> Open(absl::string_view bytes) {
    return Open(bytes, Limits());
  }

  const std::vector<Record>& records() const { return records_; }
  const Record* Find(absl::string_view name) const;
  // The record's bytes, inflated if need be; MODEL_CORRUPT if they do not have their CRC-32.
  absl::StatusOr<std::string> Read(const Record& record) const;
  int64_t format_version() const { return format_version_; }

 private:
  ModelArchive() = default;

  absl::string_view bytes_;
  std::vector<Record> records_;
  int64_t format_version_ = 0;
};

}  // namespace lowerd::lowering
