#include "src/lowering/not_torchscript.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "src/base/error.h"

namespace lowerd::lowering {
namespace {

struct Magic {
  size_t offset;
  absl::string_view bytes;
  absl::string_view what;
};

constexpr absl::string_view View(const char* text, size_t size) { return {text, size}; }

constexpr Magic kMagics[] = {
    {4, "PTMF", "a lite-interpreter flatbuffer"},
    {4, "TFL3", "a TensorFlow Lite model"},
    {0, "\x89HDF", "an HDF5 file (Keras?)"},
    {0, "\x1f\x8b", "a gzip file"},
    {0, "\x28\xb5\x2f\xfd", "a zstd file"},
    {0,
     "\x7f"
     "ELF",
     "a program or shared library"},
    {0, "GGUF", "a GGUF model"},
    {257, "ustar", "a tar file (a checkpoint of PyTorch before 0.4?)"},
    {0, "<", "an XML or HTML document"},
    {0, "version https://git-lfs", "a Git LFS pointer instead of the file itself"},
};

struct Telltale {
  // At the end of a record's name.
  absl::string_view suffix;
  absl::string_view what;
};

constexpr Telltale kTelltales[] = {
    {".data/extern_modules", "a torch.package file"},
    {"serialized_exported_program.json", "an exported program of torch.export (.pt2)"},
    {"models/model.json", "an exported program of torch.export (.pt2)"},
    {"MAR-INF/MANIFEST.json", "a TorchServe archive (the model itself is inside of it)"},
    {"model.weights.h5", "a Keras model"},
    {".npy", "a NumPy file (.npz)"},
    {".pt", "a zip file with a model inside of it (unpack it first)"},
};

bool IsText(absl::string_view bytes) {
  const absl::string_view head = bytes.substr(0, 4096);
  return std::all_of(head.begin(), head.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
}

// Safetensors begin with a little-endian size and a JSON object of that size.
bool IsSafetensors(absl::string_view bytes) {
  if (bytes.size() < 10 || bytes[8] != '{') return false;
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i)
    size = size << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  return size < bytes.size();
}

// An ONNX ModelProto begins with ir_version (field 1, a small varint), then a string or message
// field.
bool IsOnnx(absl::string_view bytes) {
  return bytes.size() > 4 && bytes[0] == '\x08' && bytes[1] > 0 && bytes[1] < 32 &&
         (bytes[2] == '\x12' || bytes[2] == '\x3a' || bytes[2] == '\x42') &&
         (absl::StrContains(bytes.substr(0, 512), "pytorch") ||
          absl::StrContains(bytes.substr(0, 4096), "onnx") || bytes[2] == '\x12');
}

// A TensorFlow SavedModel begins with saved_model_schema_version (field 1, which is 1) and
// meta_graphs (field 2). No ONNX of today has ir_version 1.
bool IsSavedModel(absl::string_view bytes) { return absl::StartsWith(bytes, "\x08\x01\x12"); }

// Protocol 0, which is text: a global or a mark first, STOP last.
bool IsTextPickle(absl::string_view bytes) {
  return (bytes.front() == 'c' || bytes.front() == '(') && bytes.back() == '.' &&
         absl::StrContains(bytes.substr(0, 512), '\n');
}

}  // namespace

absl::Status PlainZipError(const std::vector<ZipEntry>& entries) {
  for (const Telltale& telltale : kTelltales) {
    for (const ZipEntry& entry : entries) {
      if (absl::EndsWith(entry.name, telltale.suffix)) return NotTorchScriptError(telltale.what);
    }
  }
  return NotTorchScriptError("a plain zip file");
}

absl::Status NotTorchScriptError(absl::string_view what) {
  return MakeError(
      Reason::kModelNotTorchscript,
      absl::StrCat(
          "the upload is ", what,
          ", not a TorchScript model; export one by torch.jit.script(model).save(\"model.pt\") "
          "(or torch.jit.trace)"));
}

absl::Status NotAnArchiveError(absl::string_view bytes) {
  if (bytes.empty()) return NotTorchScriptError("empty");
  if (absl::StartsWith(bytes, "PK\x03\x04")) {
    return MakeError(Reason::kModelCorrupt,
                     absl::StrCat("the archive is cut off: its ", bytes.size(),
                                  " bytes have no end record; upload it again"));
  }
  for (const Magic& magic : kMagics) {
    if (bytes.size() > magic.offset && absl::StartsWith(bytes.substr(magic.offset), magic.bytes)) {
      return NotTorchScriptError(magic.what);
    }
  }
  if (IsSafetensors(bytes)) return NotTorchScriptError("a safetensors file (weights only)");
  // torch.save before 1.6 wrote a pickled magic number first.
  if (absl::StartsWith(bytes, View("\x80\x02\x8a\x0a", 4))) {
    return NotTorchScriptError("a file of torch.save in its format before PyTorch 1.6");
  }
  if ((bytes[0] == '\x80' && bytes.size() > 1 && bytes[1] >= 2 && bytes[1] <= 5) ||
      IsTextPickle(bytes)) {
    return NotTorchScriptError("a Python pickle");
  }
  if (IsSavedModel(bytes)) return NotTorchScriptError("a TensorFlow SavedModel");
  if (IsOnnx(bytes)) return NotTorchScriptError("an ONNX model");
  if (IsText(bytes)) return NotTorchScriptError("a text file");
  return NotTorchScriptError("of no format that lowerd knows");
}

}  // namespace lowerd::lowering
