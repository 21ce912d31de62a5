#include "src/lowering/compile_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/torch.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

constexpr int64_t kMaxTensorBytes = int64_t{1} << 32;

absl::StatusOr<c10::IValue> ToIValue(const v1::Value& value, const BlobFiles& blobs,
                                     const std::string& what);

absl::StatusOr<std::vector<c10::IValue>> ToIValues(const v1::ListValue& list,
                                                   const BlobFiles& blobs,
                                                   const std::string& what) {
  std::vector<c10::IValue> out;
  for (const v1::Value& item : list.values()) {
    LOWERD_ASSIGN_OR_RETURN(c10::IValue converted, ToIValue(item, blobs, what));
    out.push_back(std::move(converted));
  }
  return out;
}

// The elements' common type; Any if they differ.
c10::TypePtr CommonType(const std::vector<c10::IValue>& values) {
  if (values.empty()) return c10::AnyType::get();
  c10::TypePtr type = values.front().type<c10::Type>();
  for (const c10::IValue& value : values) {
    if (*value.type<c10::Type>() != *type) return c10::AnyType::get();
  }
  return type;
}

absl::StatusOr<c10::IValue> ToDict(const v1::DictValue& dict, const BlobFiles& blobs,
                                   const std::string& what) {
  std::vector<c10::IValue> keys, values;
  for (const auto& entry : dict.entries()) {
    LOWERD_ASSIGN_OR_RETURN(c10::IValue key, ToIValue(entry.key(), blobs, what));
    LOWERD_ASSIGN_OR_RETURN(c10::IValue value, ToIValue(entry.value(), blobs, what));
    keys.push_back(std::move(key));
    values.push_back(std::move(value));
  }
  const c10::TypePtr key_type = keys.empty() ? c10::StringType::get() : CommonType(keys);
  const bool valid = key_type->isSubtypeOf(*c10::StringType::get()) ||
                     key_type->isSubtypeOf(*c10::IntType::get()) ||
                     key_type->isSubtypeOf(*c10::FloatType::get()) ||
                     key_type->isSubtypeOf(*c10::BoolType::get()) ||
                     key_type->isSubtypeOf(*c10::TensorType::get());
  if (!valid) {
    return FieldError(what, "the keys of a dict are all strings, ints, floats, bools or tensors");
  }
  c10::impl::GenericDict out(key_type, CommonType(values));
  for (size_t i = 0; i < keys.size(); ++i) out.insert_or_assign(keys[i], values[i]);
  return c10::IValue(std::move(out));
}

absl::StatusOr<c10::IValue> ToIValue(const v1::Value& value, const BlobFiles& blobs,
                                     const std::string& what) {
  switch (value.kind_case()) {
    case v1::Value::kNone:
      return c10::IValue();
    case v1::Value::kBool:
      return c10::IValue(value.bool_());
    case v1::Value::kInt:
      return c10::IValue(static_cast<int64_t>(value.int_()));
    case v1::Value::kDouble:
      return c10::IValue(value.double_());
    case v1::Value::kString:
      return c10::IValue(value.string());
    case v1::Value::kBytes:
      return c10::IValue(value.bytes());
    case v1::Value::kList: {
      LOWERD_ASSIGN_OR_RETURN(const auto items, ToIValues(value.list(), blobs, what));
      c10::impl::GenericList list(CommonType(items));
      for (const c10::IValue& item : items) list.push_back(item);
      return c10::IValue(std::move(list));
    }
    case v1::Value::kTuple: {
      LOWERD_ASSIGN_OR_RETURN(auto items, ToIValues(value.tuple(), blobs, what));
      return c10::IValue(c10::ivalue::Tuple::create(std::move(items)));
    }
    case v1::Value::kDict:
      return ToDict(value.dict(), blobs, what);
    case v1::Value::kTensor: {
      const auto found = blobs.find(value.tensor().hash());
      if (found == blobs.end()) {
        return MakeError(Reason::kInternalError,
                         absl::StrCat(what, ": the job lacks a tensor's blob"));
      }
      LOWERD_ASSIGN_OR_RETURN(c10::IValue tensor, ReadTorchSave(found->second, what));
      if (!tensor.isTensor()) return FieldError(what, "the blob does not hold one tensor");
      return tensor;
    }
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return FieldError(what, "has no kind");
}

// A canonical text: kinds and lengths come before contents, so that no two values share one.
void AppendCanonical(const v1::Value& value, std::string* out) {
  auto bytes = [out](char kind, const std::string& text) {
    absl::StrAppend(out, std::string(1, kind), text.size(), ":", text);
  };
  switch (value.kind_case()) {
    case v1::Value::kNone:
      absl::StrAppend(out, "N");
      return;
    case v1::Value::kBool:
      absl::StrAppend(out, value.bool_() ? "T" : "F");
      return;
    case v1::Value::kInt:
      bytes('i', absl::StrCat(value.int_()));
      return;
    case v1::Value::kDouble: {
      const double number = value.double_();
      bytes('d', std::string(reinterpret_cast<const char*>(&number), sizeof number));
      return;
    }
    // PyTorch has one kind of string.
    case v1::Value::kString:
      bytes('s', value.string());
      return;
    case v1::Value::kBytes:
      bytes('s', value.bytes());
      return;
    case v1::Value::kList:
    case v1::Value::kTuple: {
      const bool is_list = value.kind_case() == v1::Value::kList;
      const v1::ListValue& list = is_list ? value.list() : value.tuple();
      absl::StrAppend(out, is_list ? "l" : "t", list.values_size(), ":");
      for (const v1::Value& item : list.values()) AppendCanonical(item, out);
      return;
    }
    case v1::Value::kDict:
      absl::StrAppend(out, "m", value.dict().entries_size(), ":");
      for (const auto& entry : value.dict().entries()) {
        AppendCanonical(entry.key(), out);
        AppendCanonical(entry.value(), out);
      }
      return;
    case v1::Value::kTensor:
      bytes('b', value.tensor().hash());
      return;
    case v1::Value::KIND_NOT_SET:
      return;
  }
}

}  // namespace

absl::StatusOr<c10::impl::GenericDict> ToMethodCompileSpec(
    const google::protobuf::RepeatedPtrField<v1::Method>& methods, const BlobFiles& blobs) {
  c10::impl::GenericDict out(c10::StringType::get(), c10::AnyType::get());
  for (const v1::Method& method : methods) {
    LOWERD_ASSIGN_OR_RETURN(
        c10::IValue spec,
        ToIValue(method.compile_spec(), blobs, absl::StrCat("compile spec of ", method.name())));
    out.insert_or_assign(method.name(), std::move(spec));
  }
  return out;
}

Digest CompileSpecDigest(const google::protobuf::RepeatedPtrField<v1::Method>& methods) {
  std::string canonical;
  for (const v1::Method& method : methods) {
    absl::StrAppend(&canonical, method.name().size(), ":", method.name());
    AppendCanonical(method.compile_spec(), &canonical);
  }
  return Digest::Of(canonical);
}

absl::StatusOr<c10::IValue> ReadTorchSave(int fd, const std::string& what) {
  LOWERD_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fd, kMaxTensorBytes));
  c10::IValue value;
  LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kInvalidRequest, what, [&] {
    value = torch::jit::pickle_load(std::vector<char>(bytes.begin(), bytes.end()));
    return absl::OkStatus();
  }));
  return value;
}

}  // namespace lowerd::lowering
