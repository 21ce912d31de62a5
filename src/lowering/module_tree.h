#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace lowerd::lowering {

using ObjectPtr = c10::intrusive_ptr<c10::ivalue::Object>;
using ObjectRef = const c10::ivalue::Object*;

// True for objects of module types (not of script classes).
bool IsModule(const c10::IValue& value);
std::string TypeNameOf(const c10::ivalue::Object& object);

// The module objects of a model, each once, by identity. A view: the model must outlive it.
class ModuleTree {
 public:
  struct Node {
    // Dotted; empty for the root. The first path in depth-first, attribute order.
    std::string path;
    // The other paths to the same object, in the same order.
    std::vector<std::string> aliases;
    ObjectPtr object;
    // By attribute, in order.
    std::vector<std::pair<std::string, size_t>> children;
  };

  explicit ModuleTree(const torch::jit::Module& root);

  // Depth first; the root is the first.
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& root() const { return nodes_.front(); }
  // Null if the object is no module of this model.
  const Node* Find(ObjectRef object) const;
  const Node& NodeOf(ObjectRef object) const { return *Find(object); }

 private:
  void Visit(const ObjectPtr& object, const std::string& path);

  std::vector<Node> nodes_;
  std::unordered_map<ObjectRef, size_t> index_;
};

}  // namespace lowerd::lowering
