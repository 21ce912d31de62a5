#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lowerd {

// Qualified names of TorchScript types. A mangle is an atom ___torch_mangle_<N>; PyTorch parses N
// with stoi, so it is below 2^31.

inline constexpr char kLoweredModulePrefix[] = "torch.jit.LoweredModule.";
inline constexpr char kLoweredWrapperPrefix[] = "torch.jit.LoweredWrapper.";
// N of a mangle lies in [0, kMangleRange).
inline constexpr uint32_t kMangleRange = 0x7fffffff;

// The name without its mangle atoms.
std::string Demangle(absl::string_view name);
// The numbers in its mangle atoms, in order; numbers that do not fit into int64 give INT64_MAX.
std::vector<int64_t> MangleNumbers(absl::string_view name);
// `base` with ___torch_mangle_<N> before its last atom.
std::string MangledName(absl::string_view base, uint32_t mangle);

// torch.jit.LoweredModule.<backend>.<original type without its mangles>.
std::string LoweredModuleBaseName(absl::string_view backend, absl::string_view original_type);
// The name of the wrapper that goes with a lowered module's name, and the other way round; the name
// unchanged if it is neither.
std::string WrapperNameOf(absl::string_view lowered_module);
std::string LoweredModuleNameOf(absl::string_view wrapper);

// True for the class that a backend runs, in this layout or in those of older PyTorch versions
// (torch.jit.<backend>.LoweredModule.<type>).
bool IsLoweredModuleName(absl::string_view name);
bool IsLoweredWrapperName(absl::string_view name);

}  // namespace lowerd
