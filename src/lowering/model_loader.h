#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <torch/csrc/jit/api/module.h>

#include "src/lowering/model_archive.h"

namespace lowerd::lowering {

// A file mapped read-only. Movable.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Map(int fd);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  absl::string_view bytes() const { return {data_, size_}; }

 private:
  MappedFile(const char* data, size_t size) : data_(data), size_(size) {}
  const char* data_;
  size_t size_;
};

// What the code of an archive needs and this process lacks, told without running it.
struct MissingParts {
  std::vector<std::string> operators;
  std::vector<std::string> classes;
};
MissingParts FindMissing(const ModelArchive& archive);

struct LoadedModel {
  torch::jit::Module module;
  std::unordered_map<std::string, std::string> extra_files;
};

// Loads a checked archive. Loading runs the model's code. MISSING_OPERATORS and MISSING_CLASSES
// list all that is missing; MODEL_CORRUPT has the loader's own words.
absl::StatusOr<LoadedModel> LoadModel(const ModelArchive& archive, absl::string_view bytes);

}  // namespace lowerd::lowering
