#pragma once

#include <string>

#include <torch/csrc/jit/backends/backend_detail.h>

namespace lowerd::lowering {

// Preprocess functions by backend name. libtorch keeps these to itself: it exports only the
// function that registers one. So this library defines
// torch::jit::detail::registerBackendPreprocessFunction too; the program exports it, which makes
// the dynamic linker resolve the backends' calls to it, and it hands each registration on to
// libtorch.

// Null if the backend has none.
const torch::jit::detail::BackendPreprocessFunction* FindPreprocess(const std::string& backend);

}  // namespace lowerd::lowering
