#include "client/cli/compile_spec_json.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace lowerd::cli {
namespace {

using lowerd::v1::Value;
// Keeps the order of keys, which a TorchScript dict has too.
using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return MakeError(Reason::kInvalidRequest, absl::StrCat("compile spec at ", where, ": ", what));
}

class Converter {
 public:
  explicit Converter(const TensorResolver& resolve_tensor) : resolve_tensor_(resolve_tensor) {}

  absl::StatusOr<Value> Convert(const Json& json, const std::string& where, int depth) const {
    if (depth > kMaxDepth) return Bad(where, absl::StrCat("nested deeper than ", kMaxDepth));
    Value out;
    switch (json.type()) {
      case Json::value_t::null:
        out.mutable_none();
        return out;
      case Json::value_t::boolean:
        out.set_bool_(json.get<bool>());
        return out;
      case Json::value_t::number_unsigned:
        if (json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
          return Bad(where, "the integer does not fit into 64 bits");
        }
        [[fallthrough]];
      case Json::value_t::number_integer:
        out.set_int_(json.get<int64_t>());
        return out;
      case Json::value_t::number_float:
        out.set_double_(json.get<double>());
        return out;
      case Json::value_t::string:
        out.set_string(json.get<std::string>());
        return out;
      case Json::value_t::array:
        LOWERD_RETURN_IF_ERROR(Items(json, where, depth, *out.mutable_list()));
        return out;
      case Json::value_t::object:
        return Object(json, where, depth);
      default:
        return Bad(where, "not a JSON value");
    }
  }

 private:
  absl::Status Items(const Json& json, const std::string& where, int depth,
                     lowerd::v1::ListValue& out) const {
    for (size_t i = 0; i < json.size(); ++i) {
      LOWERD_ASSIGN_OR_RETURN(*out.add_values(),
                              Convert(json[i], absl::StrCat(where, "[", i, "]"), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Value> Object(const Json& json, const std::string& where, int depth) const {
    if (json.size() == 1 && json.begin().key().starts_with("$")) {
      return Typed(json.begin().key(), json.begin().value(), where, depth);
    }
    Value out;
    auto& dict = *out.mutable_dict();
    for (const auto& [key, value] : json.items()) {
      auto& entry = *dict.add_entries();
      entry.mutable_key()->set_string(key);
      LOWERD_ASSIGN_OR_RETURN(*entry.mutable_value(),
                              Convert(value, absl::StrCat(where, ".", key), depth + 1));
    }
    return out;
  }

  absl::StatusOr<Value> Typed(const std::string& tag, const Json& json, const std::string& where,
                              int depth) const {
    Value out;
    if (tag == "$tuple") {
      if (!json.is_array()) return Bad(where, "$tuple takes an array");
      LOWERD_RETURN_IF_ERROR(Items(json, where, depth, *out.mutable_tuple()));
      return out;
    }
    if (tag == "$dict") return Pairs(json, where, depth);
    if (!json.is_string()) return Bad(where, absl::StrCat(tag, " takes a string"));
    const std::string text = json.get<std::string>();
    if (tag == "$bytes") {
      std::string bytes;
      if (!absl::Base64Unescape(text, &bytes)) return Bad(where, "$bytes is not base64");
      out.set_bytes(bytes);
      return out;
    }
    if (tag == "$int") {
      int64_t number;
      if (!absl::SimpleAtoi(text, &number)) return Bad(where, "$int is not a 64-bit integer");
      out.set_int_(number);
      return out;
    }
    if (tag == "$double") {
      double number;
      if (!absl::SimpleAtod(text, &number)) return Bad(where, "$double is not a number");
      out.set_double_(number);
      return out;
    }
    if (tag == "$tensor") {
      LOWERD_ASSIGN_OR_RETURN(*out.mutable_tensor(), resolve_tensor_(text));
      return out;
    }
    return Bad(where, absl::StrCat(tag,
                                   " is not known; there are $tuple, $dict, $bytes, $int, "
                                   "$double and $tensor"));
  }

  absl::StatusOr<Value> Pairs(const Json& json, const std::string& where, int depth) const {
    Value out;
    auto& dict = *out.mutable_dict();
    for (const Json& pair : json) {
      if (!pair.is_array() || pair.size() != 2) {
        return Bad(where, "$dict takes an array of [key, value]");
      }
      auto& entry = *dict.add_entries();
      LOWERD_ASSIGN_OR_RETURN(*entry.mutable_key(), Convert(pair[0], where, depth + 1));
      LOWERD_ASSIGN_OR_RETURN(*entry.mutable_value(), Convert(pair[1], where, depth + 1));
    }
    return out;
  }

  const TensorResolver& resolve_tensor_;
};

// nlohmann reports syntax errors by exceptions; they end here.
absl::StatusOr<Json> ParseJson(absl::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    // Its messages begin with "[json.exception.parse_error.101] ".
    absl::string_view message = e.what();
    message.remove_prefix(std::min(message.size(), message.find("] ") + 2));
    return MakeError(Reason::kInvalidRequest,
                     absl::StrCat("the compile spec is not JSON: ", message));
  }
}

}  // namespace

absl::StatusOr<CompileSpecs> ParseCompileSpecs(absl::string_view json,
                                               absl::Span<const std::string> methods,
                                               const TensorResolver& resolve_tensor) {
  LOWERD_ASSIGN_OR_RETURN(const Json document, ParseJson(json));
  const Converter converter(resolve_tensor);
  const auto is_method = [&](const std::string& name) {
    return std::find(methods.begin(), methods.end(), name) != methods.end();
  };
  CompileSpecs specs;
  bool by_method = document.is_object() && !document.empty();
  if (by_method) {
    for (const auto& [key, value] : document.items()) by_method = by_method && is_method(key);
  }
  if (by_method) {
    for (const auto& [key, value] : document.items()) {
      LOWERD_ASSIGN_OR_RETURN(specs[key], converter.Convert(value, key, 0));
    }
    return specs;
  }
  LOWERD_ASSIGN_OR_RETURN(const Value value, converter.Convert(document, "$", 0));
  for (const std::string& method : methods) specs[method] = value;
  return specs;
}

}  // namespace lowerd::cli
