#include "src/lowering/torch_error.h"

#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <c10/util/Exception.h>

namespace lowerd::lowering {
namespace {

bool IsAllocationFailure(absl::string_view message) {
  return absl::StrContains(message, "DefaultCPUAllocator") ||
         absl::StrContains(message, "not enough memory") ||
         absl::StrContains(message, "std::bad_alloc") ||
         absl::StrContains(message, "Cannot allocate memory");
}

}  // namespace

std::string FoldedText(absl::string_view text, size_t limit) {
  std::string out;
  for (const char c : text) {
    const bool space = static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
    if (!space) {
      out.push_back(c);
    } else if (!out.empty() && out.back() != ' ') {
      out.push_back(' ');
    }
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  if (out.size() > limit) {
    // Not in the middle of a character.
    while (limit > 0 && (static_cast<unsigned char>(out[limit]) & 0xc0) == 0x80) --limit;
    out.resize(limit);
    out += "...";
  }
  return out;
}

std::string TorchMessage(const std::exception& error, size_t limit) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const absl::string_view text =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return FoldedText(text, limit);
}

absl::Status CatchTorch(Reason reason, absl::string_view what,
                        const std::function<absl::Status()>& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return MakeError(Reason::kOutOfMemory,
                     absl::StrCat(what, ": the job needs more memory than its limit"));
  } catch (const std::exception& error) {
    const std::string message = TorchMessage(error);
    return MakeError(IsAllocationFailure(message) ? Reason::kOutOfMemory : reason,
                     absl::StrCat(what, ": ", message));
  }
}

}  // namespace lowerd::lowering
