#include "src/base/type_name.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lowerd {
namespace {

constexpr absl::string_view kMangleAtom = "___torch_mangle_";

bool IsMangle(absl::string_view atom) {
  if (!absl::ConsumePrefix(&atom, kMangleAtom) || atom.empty()) return false;
  return atom.find_first_not_of("0123456789") == absl::string_view::npos;
}

}  // namespace

std::string Demangle(absl::string_view name) {
  std::vector<absl::string_view> kept;
  for (const absl::string_view atom : absl::StrSplit(name, '.')) {
    if (!IsMangle(atom)) kept.push_back(atom);
  }
  return absl::StrJoin(kept, ".");
}

std::vector<int64_t> MangleNumbers(absl::string_view name) {
  std::vector<int64_t> out;
  for (absl::string_view atom : absl::StrSplit(name, '.')) {
    if (!IsMangle(atom)) continue;
    int64_t number;
    if (!absl::SimpleAtoi(atom.substr(kMangleAtom.size()), &number)) {
      number = std::numeric_limits<int64_t>::max();
    }
    out.push_back(number);
  }
  return out;
}

std::string MangledName(absl::string_view base, uint32_t mangle) {
  const size_t dot = base.rfind('.');
  if (dot == absl::string_view::npos) return absl::StrCat(kMangleAtom, mangle, ".", base);
  return absl::StrCat(base.substr(0, dot + 1), kMangleAtom, mangle, base.substr(dot));
}

std::string LoweredModuleBaseName(absl::string_view backend, absl::string_view original_type) {
  return absl::StrCat(kLoweredModulePrefix, backend, ".", Demangle(original_type));
}

std::string WrapperNameOf(absl::string_view lowered_module) {
  if (!absl::ConsumePrefix(&lowered_module, kLoweredModulePrefix))
    return std::string(lowered_module);
  return absl::StrCat(kLoweredWrapperPrefix, lowered_module);
}

std::string LoweredModuleNameOf(absl::string_view wrapper) {
  if (!absl::ConsumePrefix(&wrapper, kLoweredWrapperPrefix)) return std::string(wrapper);
  return absl::StrCat(kLoweredModulePrefix, wrapper);
}

bool IsLoweredModuleName(absl::string_view name) {
  if (absl::StartsWith(name, kLoweredModulePrefix)) return true;
  const std::vector<absl::string_view> atoms = absl::StrSplit(name, '.');
  return atoms.size() > 4 && atoms[0] == "torch" && atoms[1] == "jit" &&
         atoms[3] == "LoweredModule";
}

bool IsLoweredWrapperName(absl::string_view name) {
  return absl::StartsWith(name, kLoweredWrapperPrefix);
}

}  // namespace lowerd
