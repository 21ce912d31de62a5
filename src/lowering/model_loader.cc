#include "src/lowering/model_loader.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <caffe2/serialize/read_adapter_interface.h>
#include <sys/mman.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/custom_class.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/lowering/torch_compat.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

constexpr absl::string_view kExtraFolder = "extra/";

class MappedReader final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MappedReader(absl::string_view bytes) : bytes_(bytes) {}

  size_t size() const override { return bytes_.size(); }
  size_t read(uint64_t pos, void* buffer, size_t n, const char*) const override {
    if (pos >= bytes_.size()) return 0;
    const size_t count = std::min(n, bytes_.size() - static_cast<size_t>(pos));
    std::memcpy(buffer, bytes_.data() + pos, count);
    return count;
  }

 private:
  const absl::string_view bytes_;
};

// Calls `visit` with each dotted name in TorchScript source, outside of strings and comments.
template <typename Visit>
void ForEachDottedName(absl::string_view code, Visit visit) {
  auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  for (size_t i = 0; i < code.size();) {
    const char c = code[i];
    if (c == '"' || c == '\'') {
      for (++i; i < code.size() && code[i] != c; ++i) {
        if (code[i] == '\\') ++i;
      }
      ++i;
    } else if (c == '#') {
      while (i < code.size() && code[i] != '\n') ++i;
    } else if (is_name(c) && c != '.') {
      const size_t begin = i;
      while (i < code.size() && is_name(code[i])) ++i;
      visit(code.substr(begin, i - begin));
    } else {
      ++i;
    }
  }
}

bool OperatorExists(const std::string& qualified) {
  const c10::Symbol symbol = c10::Symbol::fromQualString(qualified);
  return !torch::jit::getAllOperatorsFor(symbol).empty();
}

std::string MissingMessage(absl::string_view what, const std::vector<std::string>& names,
                           absl::string_view remedy) {
  return absl::StrCat("the model needs ", what,
                      " that this server lacks: ", absl::StrJoin(names, ", "), "; ", remedy);
}

// PyTorch's importer says "Unknown builtin op: aten::nosuch." for an operator of its own that is
// gone.
std::string UnknownBuiltin(const std::string& message) {
  const std::string marker = "Unknown builtin op: ";
  const size_t at = message.find(marker);
  if (at == std::string::npos) return "";
  const std::string rest = message.substr(at + marker.size());
  return std::string(absl::StripSuffix(rest.substr(0, rest.find(' ')), "."));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Map(int fd) {
  LOWERD_ASSIGN_OR_RETURN(const int64_t size, FileSize(fd));
  if (size == 0) return MappedFile("", 0);
  void* data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return ErrnoError(errno, "mapping a file");
  return MappedFile(static_cast<const char*>(data), static_cast<size_t>(size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(other.data_), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (size_ != 0) ::munmap(const_cast<char*>(data_), size_);
}

MissingParts FindMissing(const ModelArchive& archive) {
  std::set<std::string> operators, classes;
  for (const ModelArchive::Record& record : archive.records()) {
    if (!absl::StartsWith(record.name, "code/") || !absl::EndsWith(record.name, ".py")) continue;
    const auto code = archive.Read(record);
    if (!code.ok()) continue;
    ForEachDottedName(*code, [&](absl::string_view name) {
      constexpr absl::string_view kClasses = "__torch__.torch.classes.";
      if (absl::StartsWith(name, kClasses)) {
        // Behind the class there may be a method: ....classes.<namespace>.<class>[.__new__]
        const std::vector<std::string> atoms = absl::StrSplit(name, '.');
        if (atoms.size() < 5) return;
        const std::string type = absl::StrJoin(atoms.begin(), atoms.begin() + 5, ".");
        if (torch::getCustomClass(type) == nullptr) classes.insert(type);
      } else if (absl::ConsumePrefix(&name, "ops.")) {
        const std::vector<std::string> atoms = absl::StrSplit(name, '.');
        if (atoms.size() < 2) return;
        const std::string qualified = absl::StrCat(atoms[0], "::", atoms[1]);
        if (!OperatorExists(qualified)) operators.insert(qualified);
      }
    });
  }
  return {{operators.begin(), operators.end()}, {classes.begin(), classes.end()}};
}

absl::StatusOr<LoadedModel> LoadModel(const ModelArchive& archive, absl::string_view bytes) {
  const MissingParts missing = FindMissing(archive);
  if (!missing.operators.empty()) {
    return MakeError(
        Reason::kMissingOperators,
        MissingMessage("operators", missing.operators, "load their library with lowerd --op-lib"),
        {{"operators", absl::StrJoin(missing.operators, ",")}});
  }
  if (!missing.classes.empty()) {
    return MakeError(Reason::kMissingClasses,
                     MissingMessage("custom classes", missing.classes,
                                    "load their library with lowerd --op-lib or --backend-lib"),
                     {{"classes", absl::StrJoin(missing.classes, ",")}});
  }
  LoadedModel out;
  for (const ModelArchive::Record& record : archive.records()) {
    if (!absl::StartsWith(record.name, kExtraFolder)) continue;
    LOWERD_ASSIGN_OR_RETURN(std::string content, archive.Read(record));
    out.extra_files.emplace(record.name.substr(kExtraFolder.size()), std::move(content));
  }
  absl::Status status = CatchTorch(Reason::kModelCorrupt, "PyTorch cannot load the model", [&] {
    out.module = torch::jit::load(std::make_shared<MappedReader>(bytes), c10::Device(c10::kCPU));
    return absl::OkStatus();
  });
  if (!status.ok()) {
    if (absl::StrContains(status.message(), "Backend is not available.")) {
      return MakeError(Reason::kBackendFailed,
                       "the model holds modules that were lowered before, to a backend that is not "
                       "available on this host, and PyTorch cannot load these here; lower the "
                       "original model with all targets at once");
    }
    const std::string builtin = UnknownBuiltin(std::string(status.message()));
    if (!builtin.empty()) {
      return MakeError(
          Reason::kMissingOperators,
          MissingMessage("operators", {builtin}, "it was exported by another version of PyTorch"),
          {{"operators", builtin}});
    }
    return status;
  }
  return out;
}

}  // namespace lowerd::lowering
