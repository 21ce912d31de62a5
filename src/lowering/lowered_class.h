#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <torch/csrc/jit/api/module.h>

#include "src/lowering/module_tree.h"

namespace lowerd::lowering {

// Why a method cannot run on a backend; empty if it can. Looks at the signature only.
std::string UnsupportedSignature(const c10::FunctionSchema& schema);

struct LoweredClassSpec {
  std::string backend;
  // For errors; empty for the root.
  std::string path;
  // Final names, with their mangles; unique in the model.
  std::string lowered_type;
  std::string wrapper_type;
  // The module to lower.
  ObjectPtr original;
  // Methods that run on the backend; their signatures are supported.
  std::vector<std::string> methods;
  // Dict[str, Any]: method to compile spec.
  c10::impl::GenericDict compile_spec{c10::StringType::get(), c10::AnyType::get()};
};

struct LoweredModule {
  ObjectPtr wrapper;
  // What the backend's preprocess made.
  c10::IValue payload;
};

// Preprocesses the module by its backend and makes the wrapper that takes its place, in the
// structure that PyTorch's runtimes know (torch/csrc/jit/backends/backend_detail.cpp): a wrapper
// class that holds
// __loweredModule__, a lowered class whose state is (compile spec, payload, create-backend flag).
// Unlike PyTorch's own code it takes the names it is given, keeps each method's schema as it is
// (receiver of any name, defaults, keyword-only arguments, exact container types), and never runs
// the backend's compile, so that a backend that is not available here can be lowered to.
//
// The backend gets a copy of the module with classes of its own that shares the tensors.
// BACKEND_FAILED if it throws.
absl::StatusOr<LoweredModule> MakeLoweredModule(const LoweredClassSpec& spec);

}  // namespace lowerd::lowering
