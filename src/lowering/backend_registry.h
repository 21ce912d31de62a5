#pragma once

#include <set>
#include <string>

#include <torch/csrc/jit/backends/backend_detail.h>

namespace lowerd::lowering {

// What backend libraries register with libtorch. libtorch exports the functions that register, but
// none that list. So this library defines torch::registerCustomClass and
// torch::jit::detail::registerBackendPreprocessFunction too; the program exports them, which makes
// the dynamic linker resolve the backends' calls to them, and they hand each registration on to
// libtorch.
//
// Written while libraries are loaded and read afterwards, by one thread.

// Names of the backends registered so far.
std::set<std::string> RegisteredBackends();

// Null if the backend has none.
const torch::jit::detail::BackendPreprocessFunction* FindPreprocess(const std::string& backend);

}  // namespace lowerd::lowering
