#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lowerd::lowering {

// The values of a pickle, without running anything: a GLOBAL is just a name, a REDUCE just a
// callable's name and its arguments. Memory is bounded by the pickle's size, and absolutely.
class PickleValues {
 public:
  using Index = uint32_t;

  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kTuple,
    kList,
    kDict,
    // module.name
    kGlobal,
    // items: callable, arguments, and the state that BUILD gave
    kReduced,
    // items: the id
    kPersistent,
  };
  struct Value {
    Kind kind = Kind::kNone;
    // kBool, kInt
    int64_t number = 0;
    // kString: a view of the pickle; kGlobal: "module\nname" as it stands in the pickle.
    absl::string_view text;
    // Elements; for dicts, keys and values in turn.
    std::vector<Index> items;
  };

  // Runs the opcodes that PyTorch's pickler writes (protocol 2). MODEL_CORRUPT says what is wrong,
  // where.
  static absl::StatusOr<PickleValues> Parse(absl::string_view pickle, absl::string_view name);

  const Value& root() const { return values_[root_]; }
  const Value& at(Index index) const { return values_[index]; }
  const std::vector<Value>& values() const { return values_; }
  // "module.name" of a kGlobal.
  static std::string GlobalName(const Value& value);

 private:
  friend class PickleParser;
  std::vector<Value> values_;
  Index root_ = 0;
};

}  // namespace lowerd::lowering
