#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include "lowerd/v1/lowering.pb.h"
#include "src/base/digest.h"

namespace lowerd::lowering {

// Descriptors of the request's blobs, by SHA-256 in hexadecimal; borrowed.
using BlobFiles = std::map<std::string, int>;

// The Dict[str, Any] that a backend gets: method name to compile spec. INVALID_REQUEST for what is
// no TorchScript value, for instance a dict with keys of two kinds.
absl::StatusOr<c10::impl::GenericDict> ToMethodCompileSpec(
    const google::protobuf::RepeatedPtrField<v1::Method>& methods, const BlobFiles& blobs);

// Of the canonical form of the same. `methods` must be sorted by name, each with its spec.
Digest CompileSpecDigest(const google::protobuf::RepeatedPtrField<v1::Method>& methods);

// What torch.save wrote: a tensor, a tuple of arguments, ... INVALID_REQUEST names `what`.
absl::StatusOr<c10::IValue> ReadTorchSave(int fd, const std::string& what);

}  // namespace lowerd::lowering
