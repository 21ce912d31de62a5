#pragma once

// What differs between the libtorch versions that lowerd compiles with (1.13, 2.6 and newer).
// Nothing else looks at a version.

#include <optional>
#include <string>
#include <utility>

#include <c10/util/Optional.h>
#include <caffe2/serialize/versions.h>
#include <torch/csrc/jit/ir/scope.h>
#include <torch/version.h>

namespace lowerd::lowering {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
template <typename T>
using TorchOptional = std::optional<T>;
#else
template <typename T>
using TorchOptional = c10::optional<T>;
#endif

// Copies `stack` with another place and callee. Older versions are told the function's name
// afterwards, newer ones when the stack is made.
template <typename Stack>
c10::intrusive_ptr<Stack> CopyCallStack(const Stack& stack, torch::jit::SourceRange place,
                                        TorchOptional<c10::intrusive_ptr<Stack>> callee) {
  const auto made = [&](auto&&... name) {
    return callee.has_value()
               ? c10::make_intrusive<Stack>(*callee, stack.function(), std::move(place),
                                            stack.module_instance(), name...)
               : c10::make_intrusive<Stack>(stack.function(), std::move(place),
                                            stack.module_instance(), name...);
  };
  std::string name = stack.function_name();
  if constexpr (requires(Stack& copy) { copy.set_function_name(name); }) {
    c10::intrusive_ptr<Stack> copy = made();
    copy->set_function_name(std::move(name));
    return copy;
  } else {
    return made(name);
  }
}

}  // namespace lowerd::lowering
