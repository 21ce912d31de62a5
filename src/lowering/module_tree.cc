#include "src/lowering/module_tree.h"

#include <utility>

namespace lowerd::lowering {
namespace {

// Models whose shared objects multiply paths beyond this have their further aliases left out.
constexpr size_t kMaxAliases = 10'000;

}  // namespace

bool IsModule(const c10::IValue& value) {
  return value.isObject() && value.toObjectRef().type()->is_module();
}

std::string TypeNameOf(const c10::ivalue::Object& object) {
  return object.type()->name()->qualifiedName();
}

ModuleTree::ModuleTree(const torch::jit::Module& root) { Visit(root._ivalue(), ""); }

const ModuleTree::Node* ModuleTree::Find(ObjectRef object) const {
  const auto found = index_.find(object);
  return found == index_.end() ? nullptr : &nodes_[found->second];
}

void ModuleTree::Visit(const ObjectPtr& object, const std::string& path) {
  const auto found = index_.find(object.get());
  const bool seen = found != index_.end();
  const size_t self = seen ? found->second : nodes_.size();
  if (seen) {
    if (nodes_[self].aliases.size() >= kMaxAliases) return;
    nodes_[self].aliases.push_back(path);
  } else {
    nodes_.push_back({path, {}, object, {}});
    index_.emplace(object.get(), self);
  }
  const c10::ClassType& type = *object->type();
  for (size_t slot = 0; slot < type.numAttributes(); ++slot) {
    const c10::IValue& value = object->getSlot(slot);
    if (!IsModule(value)) continue;
    const std::string& name = type.getAttributeName(slot);
    const ObjectPtr child = value.toObject();
    Visit(child, path.empty() ? name : path + "." + name);
    if (!seen) nodes_[self].children.emplace_back(name, index_.at(child.get()));
  }
}

}  // namespace lowerd::lowering
