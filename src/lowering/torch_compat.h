#pragma once

// What differs between the libtorch versions that lowerd compiles with (1.13, 2.6 and newer).
// Nothing else looks at a version.

#include <optional>

#include <c10/util/Optional.h>
#include <caffe2/serialize/versions.h>
#include <torch/version.h>

namespace lowerd::lowering {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
template <typename T>
using TorchOptional = std::optional<T>;
#else
template <typename T>
using TorchOptional = c10::optional<T>;
#endif

}  // namespace lowerd::lowering
