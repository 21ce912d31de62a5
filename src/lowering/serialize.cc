#include "src/lowering/serialize.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <torch/csrc/jit/serialization/export.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

// PyTorch writes headers and padding in pieces of a few bytes.
constexpr size_t kBuffer = 256 << 10;

class BufferedWriter {
 public:
  explicit BufferedWriter(int fd) : fd_(fd) { buffer_.reserve(kBuffer); }

  // Always takes everything: a short write would make PyTorch's writer throw in its destructor and
  // abort. An error waits in status().
  void Write(const void* data, size_t size) {
    if (!status_.ok()) return;
    const absl::string_view bytes(static_cast<const char*>(data), size);
    if (buffer_.size() + size > kBuffer && !Flush().ok()) return;
    if (size >= kBuffer) {
      status_ = WriteAll(fd_, bytes);
    } else {
      buffer_.append(bytes.data(), bytes.size());
    }
  }

  absl::Status Flush() {
    if (status_.ok()) status_ = WriteAll(fd_, buffer_);
    buffer_.clear();
    return status_;
  }

  const absl::Status& status() const { return status_; }

 private:
  const int fd_;
  std::string buffer_;
  absl::Status status_;
};

// Messages by which PyTorch's lite serialisers say that something has no place in their format.
bool IsFormatLimit(absl::string_view message) {
  for (const absl::string_view marker :
       {"not supported in lite interpreter", "not supported in mobile",
        "Can't find definition for the type", "is not supported in mobile module",
        "Unsupported node", "not supported for mobile", "does not have a field with name",
        "Cannot serialize", "not yet support", "not supported in bytecode"}) {
    if (absl::StrContains(message, marker)) return true;
  }
  return false;
}

}  // namespace

absl::Status WriteArtifact(const torch::jit::Module& module, v1::Format format,
                           const std::unordered_map<std::string, std::string>& extra_files,
                           bool debug_info, int fd) {
  BufferedWriter writer(fd);
  const bool lite = format != v1::TORCHSCRIPT;
  const std::string what = absl::StrCat("writing the ", v1::Format_Name(format), " artifact");
  absl::Status status = CatchTorch(Reason::kInternalError, what, [&] {
    torch::jit::ExportModule(
        module,
        [&writer](const void* data, size_t size) {
          writer.Write(data, size);
          return size;
        },
        extra_files, /*bytecode_format=*/lite, /*save_mobile_debug_info=*/lite && debug_info,
        /*use_flatbuffer=*/format == v1::FLATBUFFER);
    return writer.Flush();
  });
  if (!writer.status().ok()) return writer.status();
  if (!status.ok() && HasReason(status, Reason::kInternalError) &&
      (lite || IsFormatLimit(status.message()))) {
    return MakeError(Reason::kUnsupportedByFormat,
                     absl::StrCat(status.message(), "; ask for other formats"));
  }
  return status;
}

}  // namespace lowerd::lowering
