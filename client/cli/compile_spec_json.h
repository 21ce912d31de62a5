#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lowerd/v1/lowering.pb.h"

namespace lowerd::cli {

// By method name. Methods without an entry have no compile spec.
using CompileSpecs = std::map<std::string, lowerd::v1::Value>;

// Turns a path of {"$tensor": path} into the digest of that file (and sees to its upload).
using TensorResolver =
    std::function<absl::StatusOr<build::bazel::remote::execution::v2::Digest>(const std::string&)>;

// An object whose keys are all among `methods` gives each of these methods its value; anything else
// is the value for every method. null is None, true and false are bools, integers ints, other
// numbers floats, arrays lists, objects dicts with string keys in the order of the file. An object
// with one key that begins with "$" is typed:
//   {"$tuple": [...]}  {"$dict": [[key, value], ...]}  {"$bytes": "base64"}
//   {"$int": "..."}  {"$double": "nan"}  {"$tensor": "file, as torch.save writes it"}
// INVALID_REQUEST says where in the document it is not understood.
absl::StatusOr<CompileSpecs> ParseCompileSpecs(absl::string_view json,
                                               absl::Span<const std::string> methods,
                                               const TensorResolver& resolve_tensor);

}  // namespace lowerd::cli
