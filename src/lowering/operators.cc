#include "src/lowering/operators.h"

#include <limits>
#include <map>
#include <utility>

#include "src/lowering/module_values.h"

namespace lowerd::lowering {
namespace {

using torch::jit::Node;

// Structure of the language (prim::If, prim::GetAttr, ...) is no operator that a backend could
// take.
bool IsOperator(const Node& node) { return !node.kind().is_prim(); }

std::string OperatorName(const Node& node) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (schema == nullptr) return node.kind().toQualString();
  return c10::toString(schema->operator_name());
}

class Counter {
 public:
  explicit Counter(const std::set<ObjectRef>& stop) : stop_(stop) {}

  void Graph(const torch::jit::Graph& graph, const ObjectPtr& self) {
    const ModuleValues values = !self ? ModuleValues() : ResolveModuleValues(graph, self);
    ForEachNode(*graph.block(), [&](const Node& node) {
      if (node.kind() == c10::prim::CallFunction) {
        torch::jit::Function* function = CalleeOf(node);
        if (function == nullptr) return;
        for (const auto& [name, count] : OfFunction(*function)) Add(name, count);
      } else if (node.kind() == c10::prim::CallMethod) {
        const auto found = values.find(node.input(0));
        if (found != values.end()) Method(found->second, node.s(c10::attr::name));
      } else if (IsOperator(node)) {
        Add(OperatorName(node), 1);
      }
    });
  }

  void Method(const ObjectPtr& object, const std::string& name) {
    if (stop_.count(object.get()) != 0 || !seen_.emplace(object.get(), name).second) return;
    torch::jit::Function* function = object->type()->findMethod(name);
    if (function == nullptr) function = object->type()->findHook(name);
    if (function != nullptr) Graph(*GraphOf(*function), object);
  }

  OperatorCounts counts;

 private:
  // Functions that call each other twice make a number that doubles with each.
  void Add(const std::string& name, int64_t count) {
    int64_t& sum = counts[name];
    sum = count > std::numeric_limits<int64_t>::max() - sum ? std::numeric_limits<int64_t>::max()
                                                            : sum + count;
  }

  // Each is walked through once, however often it is called.
  const OperatorCounts& OfFunction(torch::jit::Function& function) {
    const auto found = functions_.find(&function);
    if (found != functions_.end()) return found->second;
    OperatorCounts outer = std::exchange(counts, {});
    Graph(*GraphOf(function), ObjectPtr());
    return functions_.emplace(&function, std::exchange(counts, std::move(outer))).first->second;
  }

  const std::set<ObjectRef>& stop_;
  std::set<std::pair<ObjectRef, std::string>> seen_;
  std::map<const torch::jit::Function*, OperatorCounts> functions_;
};

}  // namespace

OperatorCounts CountOperators(const torch::jit::Graph& graph) {
  const std::set<ObjectRef> none;
  Counter counter(none);
  counter.Graph(graph, ObjectPtr());
  return std::move(counter.counts);
}

OperatorCounts CountReachable(const ObjectPtr& start, const std::vector<std::string>& methods,
                              const std::set<ObjectRef>& stop) {
  Counter counter(stop);
  for (const std::string& method : methods) counter.Method(start, method);
  return std::move(counter.counts);
}

void AppendCounts(const OperatorCounts& counts,
                  google::protobuf::RepeatedPtrField<v1::OperatorCount>* out) {
  for (const auto& [name, count] : counts) {
    v1::OperatorCount* entry = out->Add();
    entry->set_name(name);
    entry->set_count(count);
  }
}

}  // namespace lowerd::lowering
