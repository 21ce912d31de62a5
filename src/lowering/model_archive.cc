#include "src/lowering/model_archive.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <zlib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "src/base/error.h"
#include "src/lowering/not_torchscript.h"
#include "src/lowering/pickle_machine.h"
#include "src/lowering/zip_directory.h"

namespace lowerd::lowering {
namespace {

using Kind = PickleValues::Kind;

absl::Status Corrupt(absl::string_view what) {
  return MakeError(Reason::kModelCorrupt,
                   absl::StrCat("the archive is damaged: ", what,
                                "; export the model again or upload it again"));
}

std::string Shown(absl::string_view name) {
  return absl::StrCat("record \"", absl::CHexEscape(name.substr(0, 200)), "\"");
}

bool IsSafeName(absl::string_view name) {
  if (name.empty() || name.front() == '/' || absl::StrContains(name, '\\') ||
      absl::StrContains(name, '\0')) {
    return false;
  }
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (part == "..") return false;
  }
  return true;
}

// Bytes of one element of a storage by the name of its class; 0 for one that is not known.
int64_t ElementSize(absl::string_view storage) {
  static const auto& sizes = *new std::map<absl::string_view, int64_t>{
      {"DoubleStorage", 8},   {"FloatStorage", 4},          {"HalfStorage", 2},
      {"BFloat16Storage", 2}, {"LongStorage", 8},           {"IntStorage", 4},
      {"ShortStorage", 2},    {"CharStorage", 1},           {"ByteStorage", 1},
      {"BoolStorage", 1},     {"ComplexDoubleStorage", 16}, {"ComplexFloatStorage", 8},
      {"QInt8Storage", 1},    {"QUInt8Storage", 1},         {"QInt32Storage", 4},
      {"QUInt4x2Storage", 1}, {"QUInt2x4Storage", 1},       {"UntypedStorage", 1}};
  const auto found = sizes.find(storage);
  return found == sizes.end() ? 0 : found->second;
}

// PyTorch's own operators stop at 64.
constexpr size_t kMaxDimensions = 64;

// Looks for tensors in a pickle that claim more than their records hold.
class TensorCheck {
 public:
  TensorCheck(const ModelArchive& archive, const PickleValues& values, std::string folder)
      : archive_(archive), values_(values), folder_(std::move(folder)) {}

  absl::Status Run() const {
    // All storages first: tensors refer to them.
    for (const PickleValues::Value& value : values_.values()) {
      if (value.kind == Kind::kPersistent) LOWERD_RETURN_IF_ERROR(CheckStorage(value));
    }
    for (const PickleValues::Value& value : values_.values()) {
      if (value.kind == Kind::kReduced) LOWERD_RETURN_IF_ERROR(CheckTensor(value));
    }
    return absl::OkStatus();
  }

 private:
  const PickleValues::Value* Item(const PickleValues::Value& value, size_t i) const {
    return i < value.items.size() ? &values_.at(value.items[i]) : nullptr;
  }

  // ("storage", class, key, device, elements)
  absl::Status CheckStorage(const PickleValues::Value& persistent) const {
    const PickleValues::Value& id = values_.at(persistent.items[0]);
    const PickleValues::Value* type = Item(id, 1);
    const PickleValues::Value* key = Item(id, 2);
    const PickleValues::Value* count = Item(id, 4);
    if (id.kind != Kind::kTuple || type == nullptr || type->kind != Kind::kGlobal ||
        key == nullptr || key->kind != Kind::kString || count == nullptr ||
        count->kind != Kind::kInt || count->number < 0) {
      return Corrupt(absl::StrCat("a storage in ", folder_, " is not described as PyTorch does"));
    }
    const std::string name = absl::StrCat(folder_, "/", key->text);
    const ModelArchive::Record* record = archive_.Find(name);
    // PyTorch does not read the record of an empty storage.
    if (record == nullptr && count->number == 0) return absl::OkStatus();
    if (record == nullptr) return Corrupt(absl::StrCat(Shown(name), " of a tensor is missing"));
    const std::string storage = PickleValues::GlobalName(*type);
    const int64_t element = ElementSize(storage.substr(storage.rfind('.') + 1));
    if (element != 0 && count->number > record->size / element) {
      return Corrupt(absl::StrCat("a tensor claims ", count->number, " elements of ", element,
                                  " bytes, but its ", Shown(name), " holds ", record->size,
                                  " bytes"));
    }
    return absl::OkStatus();
  }

  // _rebuild_tensor_v2(storage, offset, sizes, strides, ...) and _rebuild_qtensor likewise.
  absl::Status CheckTensor(const PickleValues::Value& reduced) const {
    const PickleValues::Value& callable = values_.at(reduced.items[0]);
    if (callable.kind != Kind::kGlobal || !(absl::EndsWith(callable.text, "_rebuild_tensor_v2") ||
                                            absl::EndsWith(callable.text, "_rebuild_qtensor"))) {
      return absl::OkStatus();
    }
    const PickleValues::Value& arguments = values_.at(reduced.items[1]);
    const PickleValues::Value* storage = Item(arguments, 0);
    const PickleValues::Value* offset = Item(arguments, 1);
    const PickleValues::Value* sizes = Item(arguments, 2);
    const PickleValues::Value* strides = Item(arguments, 3);
    if (arguments.kind != Kind::kTuple || storage == nullptr ||
        storage->kind != Kind::kPersistent || offset == nullptr || offset->kind != Kind::kInt ||
        sizes == nullptr || sizes->kind != Kind::kTuple || strides == nullptr ||
        strides->kind != Kind::kTuple || sizes->items.size() != strides->items.size()) {
      return Corrupt(absl::StrCat("a tensor in ", folder_, " is not described as PyTorch does"));
    }
    if (sizes->items.size() > kMaxDimensions) {
      return Corrupt(
          absl::StrCat("a tensor in ", folder_, " has ", sizes->items.size(), " dimensions"));
    }
    const int64_t held = values_.at(values_.at(storage->items[0]).items[4]).number;
    // The last element that the tensor can reach.
    int64_t last = offset->number;
    bool overflow = false;
    bool empty = false;
    for (size_t i = 0; i < sizes->items.size(); ++i) {
      const PickleValues::Value& size = values_.at(sizes->items[i]);
      const PickleValues::Value& stride = values_.at(strides->items[i]);
      if (size.kind != Kind::kInt || stride.kind != Kind::kInt || size.number < 0 ||
          stride.number < 0) {
        return Corrupt(absl::StrCat("a tensor in ", folder_, " has a negative size or stride"));
      }
      empty |= size.number == 0;
      int64_t reach;
      overflow |= __builtin_mul_overflow(size.number - 1, stride.number, &reach) ||
                  __builtin_add_overflow(last, reach, &last);
    }
    if (offset->number < 0 || (!empty && (overflow || last >= held))) {
      return Corrupt(absl::StrCat("a tensor in ", folder_, " reaches beyond its storage of ", held,
                                  " elements"));
    }
    return absl::OkStatus();
  }

  const ModelArchive& archive_;
  const PickleValues& values_;
  // Where the records of this pickle's storages are.
  const std::string folder_;
};

// A pickle may name PyTorch's own functions, and classes that the archive defines.
absl::Status CheckGlobals(const ModelArchive& archive, const PickleValues& values,
                          absl::string_view pickle) {
  static const auto& known = *new std::set<absl::string_view>{
      "torch",    "torch._utils",  "torch.jit._pickle", "torch.storage", "torch.distributed.rpc",
      "torch._C", "torch._tensor", "collections",       "builtins"};
  for (const PickleValues::Value& value : values.values()) {
    if (value.kind != Kind::kGlobal) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(value.text, absl::MaxSplits('\n', 1));
    const auto& [module, name] = parts;
    const bool own = absl::StartsWith(module, "__torch__") || absl::StartsWith(module, "torch.") ||
                     archive.Find(absl::StrCat("code/", absl::StrReplaceAll(module, {{".", "/"}}),
                                               ".py")) != nullptr;
    const bool harmless = known.count(module) != 0 && (module != "builtins" || name == "complex") &&
                          (module != "collections" || name == "OrderedDict");
    if (!harmless && !own) {
      return Corrupt(absl::StrCat(pickle, " refers to \"", absl::CHexEscape(module.substr(0, 100)),
                                  ".", absl::CHexEscape(name.substr(0, 100)),
                                  "\", which is neither PyTorch's nor defined in the archive"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelArchive> ModelArchive::Open(absl::string_view bytes, const Limits& limits) {
  if (!HasZipEnd(bytes)) return NotAnArchiveError(bytes);
  LOWERD_ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries,
                          ReadZipDirectory(bytes, limits.max_records));
  ModelArchive out;
  out.bytes_ = bytes;
  std::set<absl::string_view> names;
  absl::string_view top;
  int64_t inflated = 0;
  for (const ZipEntry& entry : entries) {
    if (!IsSafeName(entry.name))
      return Corrupt(absl::StrCat(Shown(entry.name), " has an unsafe name"));
    if (!names.insert(entry.name).second) {
      return Corrupt(absl::StrCat(Shown(entry.name), " is there twice"));
    }
    const size_t slash = entry.name.find('/');
    if (slash == std::string::npos) return PlainZipError(entries);
    const absl::string_view folder = absl::string_view(entry.name).substr(0, slash);
    if (top.empty()) top = folder;
    if (folder != top) return PlainZipError(entries);
    // Folders have entries of their own in archives that other programs packed.
    if (entry.name.back() == '/') continue;
    Record record;
    record.name = entry.name.substr(slash + 1);
    record.size = entry.size;
    record.compressed_size = entry.compressed_size;
    record.offset = entry.data_offset;
    record.compressed = entry.method != 0;
    record.crc32 = entry.crc32;
    if (record.compressed) {
      const int64_t ratio = record.size / std::max<int64_t>(record.compressed_size, 1);
      if (record.size > limits.max_inflated_bytes - inflated || ratio > limits.max_ratio) {
        return Corrupt(absl::StrCat(Shown(record.name), " inflates ", record.compressed_size,
                                    " bytes to ", record.size, ", which no model needs"));
      }
      inflated += record.size;
    }
    out.records_.push_back(std::move(record));
  }
  std::sort(out.records_.begin(), out.records_.end(),
            [](const Record& a, const Record& b) { return a.name < b.name; });

  const bool has_code = std::any_of(out.records_.begin(), out.records_.end(), [](const Record& r) {
    return absl::StartsWith(r.name, "code/");
  });
  const Record* data = out.Find("data.pkl");
  const Record* constants = out.Find("constants.pkl");
  for (const Record* record : {data, constants}) {
    if (record != nullptr && record->size > limits.max_pickle_bytes) {
      return Corrupt(absl::StrCat(Shown(record->name), " has ", record->size, " bytes; at most ",
                                  limits.max_pickle_bytes, " are accepted"));
    }
  }
  if (!has_code && data != nullptr && constants == nullptr) {
    LOWERD_ASSIGN_OR_RETURN(const std::string pickle, out.Read(*data));
    // The attribute that every module has, with the size before it.
    const bool module = absl::StrContains(pickle, absl::string_view("X\x08\0\0\0_modules", 13));
    return NotTorchScriptError(module ? "a pickled Python module (torch.save(model))"
                                      : "a checkpoint (torch.save, a state_dict?)");
  }
  if (data == nullptr && out.Find("model.json") != nullptr) {
    return NotTorchScriptError(
        "in the TorchScript format before PyTorch 1.4 (load and save it anew)");
  }
  if (data == nullptr && !has_code) return PlainZipError(entries);
  if (data == nullptr) return Corrupt("record \"data.pkl\" is missing");
  if (constants == nullptr) return Corrupt("record \"constants.pkl\" is missing");
  if (!has_code) return Corrupt("it has no records below \"code/\"");

  const Record* version = out.Find("version");
  if (version == nullptr) version = out.Find(".data/version");
  if (version == nullptr || version->size > 32) return Corrupt("record \"version\" is missing");
  LOWERD_ASSIGN_OR_RETURN(const std::string text, out.Read(*version));
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &out.format_version_) ||
      out.format_version_ < 1) {
    return Corrupt(absl::StrCat("record \"version\" is \"", absl::CHexEscape(text), "\""));
  }
  if (out.format_version_ > limits.max_format_version) {
    return MakeError(Reason::kModelTooNew,
                     absl::StrCat("the model has file format version ", out.format_version_,
                                  ", this server reads up to ", limits.max_format_version,
                                  "; export it with an older PyTorch or use a newer lowerd"));
  }

  for (const auto& [record, folder] :
       {std::pair(data, "data"), std::pair(constants, "constants")}) {
    LOWERD_ASSIGN_OR_RETURN(const std::string pickle, out.Read(*record));
    LOWERD_ASSIGN_OR_RETURN(const PickleValues values, PickleValues::Parse(pickle, record->name));
    LOWERD_RETURN_IF_ERROR(CheckGlobals(out, values, record->name));
    LOWERD_RETURN_IF_ERROR(TensorCheck(out, values, folder).Run());
  }
  return out;
}

const ModelArchive::Record* ModelArchive::Find(absl::string_view name) const {
  const auto at =
      std::lower_bound(records_.begin(), records_.end(), name,
                       [](const Record& record, absl::string_view n) { return record.name < n; });
  return at != records_.end() && at->name == name ? &*at : nullptr;
}

absl::StatusOr<std::string> ModelArchive::Read(const Record& record) const {
  const absl::string_view stored = bytes_.substr(static_cast<size_t>(record.offset),
                                                 static_cast<size_t>(record.compressed_size));
  std::string out;
  if (!record.compressed) {
    out = std::string(stored);
  } else {
    out.resize(static_cast<size_t>(record.size));
    z_stream stream = {};
    // Negative window bits: raw deflate data, as zip has it.
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {
      return MakeError(Reason::kOutOfMemory,
                       "inflating the archive needs more memory than there is");
    }
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
    stream.avail_in = static_cast<uInt>(stored.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    if (result != Z_STREAM_END || stream.avail_out != 0) {
      return Corrupt(absl::StrCat(Shown(record.name), " does not inflate to its size"));
    }
  }
  const uLong crc =
      crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(out.data()), out.size());
  if (crc != record.crc32) {
    return Corrupt(absl::StrCat(Shown(record.name), " does not have its checksum"));
  }
  return out;
}

}  // namespace lowerd::lowering
