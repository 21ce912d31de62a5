#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lowerd/v1/manifest.pb.h"
#include "src/lowering/module_tree.h"

namespace lowerd::lowering {

// Operators by name with overload, and how often graphs call them.
using OperatorCounts = std::map<std::string, int64_t>;

// In one graph and the functions that it calls, not in the methods of other modules.
OperatorCounts CountOperators(const torch::jit::Graph& graph);

// In `methods` of `start` and all that they call on module objects, each method of each object
// once. Calls on objects in `stop` are not followed. A method that `start` lacks is left out.
OperatorCounts CountReachable(const ObjectPtr& start, const std::vector<std::string>& methods,
                              const std::set<ObjectRef>& stop);

void AppendCounts(const OperatorCounts& counts,
                  google::protobuf::RepeatedPtrField<v1::OperatorCount>* out);

}  // namespace lowerd::lowering
