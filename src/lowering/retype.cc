#include "src/lowering/retype.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>

#include "src/base/type_name.h"
#include "src/lowering/module_values.h"

namespace lowerd::lowering {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

class Rebuilder {
 public:
  enum class Scope { kChanged, kAll };

  Rebuilder(const std::unordered_map<ObjectRef, ObjectPtr>& replacements, Scope scope)
      : scope_(scope), done_(replacements) {
    for (const auto& [object, replacement] : replacements) {
      replacement_types_.insert(replacement->type().get());
    }
  }

  // The new object for `object`; `object` itself if nothing below it changes.
  ObjectPtr Rebuild(const ObjectPtr& object) {
    const auto found = done_.find(object.get());
    if (found != done_.end()) return found->second;
    bool changed = scope_ == Scope::kAll;
    std::vector<c10::IValue> slots;
    slots.reserve(object->slots().size());
    for (const c10::IValue& value : object->slots()) {
      if (!IsModule(value)) {
        slots.push_back(value);
        continue;
      }
      const ObjectPtr child = value.toObject();
      ObjectPtr rebuilt = Rebuild(child);
      changed |= rebuilt != child;
      slots.emplace_back(std::move(rebuilt));
    }
    ObjectPtr out = changed ? CopyWith(object, std::move(slots)) : object;
    done_.emplace(object.get(), out);
    return out;
  }

 private:
  // What decides how a class is retyped: the class, and the types of the modules that it holds.
  using ClassKey = std::vector<const c10::Type*>;

  static ClassKey KeyOf(const c10::ClassTypePtr& type, const std::vector<c10::IValue>& slots) {
    ClassKey key = {type.get()};
    for (const c10::IValue& value : slots) {
      key.push_back(IsModule(value) ? value.toObjectRef().type().get() : nullptr);
    }
    return key;
  }

  ObjectPtr CopyWith(const ObjectPtr& object, std::vector<c10::IValue> slots) {
    const std::shared_ptr<torch::jit::CompilationUnit> unit = object->compilation_unit();
    c10::ClassTypePtr& type = types_[KeyOf(object->type(), slots)];
    if (type == nullptr) type = CopyClass(object, slots, unit);
    ObjectPtr copy = c10::ivalue::Object::create(c10::StrongTypePtr(unit, type), slots.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) copy->setSlot(slot, std::move(slots[slot]));
    return copy;
  }

  c10::ClassTypePtr CopyClass(const ObjectPtr& object, const std::vector<c10::IValue>& slots,
                              const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
    const c10::ClassTypePtr old_type = object->type();
    const c10::ClassTypePtr type = c10::ClassType::create(
        unit->mangle(c10::QualifiedName(Demangle(old_type->name()->qualifiedName()))), unit,
        /*is_module=*/true, old_type->doc_string());
    unit->register_type(type);
    for (size_t slot = 0; slot < old_type->numAttributes(); ++slot) {
      c10::TypePtr attribute = old_type->getAttribute(slot);
      // Attributes of interface types keep them.
      if (IsModule(slots[slot]) && attribute->kind() == c10::TypeKind::ClassType) {
        attribute = slots[slot].toObjectRef().type();
      }
      type->addAttribute(old_type->getAttributeName(slot), std::move(attribute),
                         old_type->is_parameter(slot), old_type->is_buffer(slot));
    }
    for (size_t i = 0; i < old_type->numConstants(); ++i) {
      type->addConstant(old_type->getConstantName(i), old_type->getConstant(i));
    }
    for (torch::jit::Function* method : old_type->methods()) {
      type->addMethod(CopyFunction(*method, object, type, *unit));
    }
    for (torch::jit::Function* hook : old_type->getForwardPreHooks()) {
      type->addForwardPreHook(CopyHook(*hook, object, type, *unit));
    }
    for (torch::jit::Function* hook : old_type->getForwardHooks()) {
      type->addForwardHook(CopyHook(*hook, object, type, *unit));
    }
    for (const c10::ClassType::Property& property : old_type->properties()) {
      type->addProperty(
          property.name, type->findMethod(property.getter->name()),
          property.setter == nullptr ? nullptr : type->findMethod(property.setter->name()));
    }
    return type;
  }

  torch::jit::Function* CopyHook(torch::jit::Function& hook, const ObjectPtr& self,
                                 const c10::ClassTypePtr& type, torch::jit::CompilationUnit& unit) {
    torch::jit::Function* copy = CopyFunction(hook, self, type, unit);
    hooks_.emplace(std::make_pair(&hook, type.get()), copy);
    return copy;
  }

  static torch::jit::Function* Define(torch::jit::Function& function,
                                      const std::shared_ptr<torch::jit::Graph>& graph,
                                      const c10::ClassType& old_type, const c10::ClassTypePtr& type,
                                      torch::jit::CompilationUnit& unit) {
    torch::jit::Function* copy =
        unit.create_function(c10::QualifiedName(*type->name(), function.name()), graph);
    copy->setSchema(function.getSchema().cloneWithRemappedTypes(
        [&](c10::TypePtr at) -> c10::TypePtr { return at.get() == &old_type ? type : at; }));
    return copy;
  }

  torch::jit::Function* CopyFunction(torch::jit::Function& function, const ObjectPtr& self,
                                     const c10::ClassTypePtr& type,
                                     torch::jit::CompilationUnit& unit) {
    const std::shared_ptr<torch::jit::Graph> original = GraphOf(function);
    const std::shared_ptr<torch::jit::Graph> graph = original->copy();
    // What each module value is, on the original objects; the copy has the same shape.
    const ModuleValues values = ResolveModuleValues(*original, self);
    RetypeInputs(original->inputs(), graph->inputs(), values, self, type);
    RetypeBlock(*original->block(), *graph->block(), values, self, type);

    return Define(function, graph, *self->type(), type, unit);
  }

  // The type of a value that is module `object`: `self` is being rebuilt right now.
  c10::TypePtr TypeFor(const ObjectPtr& object, const ObjectPtr& self,
                       const c10::ClassTypePtr& self_type) {
    if (object == self) return self_type;
    return Rebuild(object)->type();
  }

  void Retype(const Value* original, Value* copy, const ModuleValues& values, const ObjectPtr& self,
              const c10::ClassTypePtr& self_type) {
    const auto found = values.find(original);
    if (found == values.end() || original->type()->kind() != c10::TypeKind::ClassType) return;
    copy->setType(TypeFor(found->second, self, self_type));
  }

  template <typename From, typename To>
  void RetypeInputs(const From& original, const To& copy, const ModuleValues& values,
                    const ObjectPtr& self, const c10::ClassTypePtr& self_type) {
    for (size_t i = 0; i < original.size(); ++i) {
      Retype(original[i], copy[i], values, self, self_type);
    }
  }

  void RetypeBlock(const Block& original, Block& copy, const ModuleValues& values,
                   const ObjectPtr& self, const c10::ClassTypePtr& self_type) {
    auto at = copy.nodes().begin();
    for (const Node* node : original.nodes()) {
      Node* twin = *at;
      ++at;
      for (size_t i = 0; i < node->blocks().size(); ++i) {
        const Block* inner = node->blocks()[i];
        Block* inner_twin = twin->blocks()[i];
        RetypeInputs(inner->inputs(), inner_twin->inputs(), values, self, self_type);
        RetypeBlock(*inner, *inner_twin, values, self, self_type);
      }
      RetypeInputs(node->outputs(), twin->outputs(), values, self, self_type);
      RetargetHook(*node, twin);
    }
  }

  // A call of a hook of a class becomes one of the new class's hook. A replacement has no hooks:
  // its class is named like one of PyTorch's own, whose functions code cannot name. So a hook that
  // does nothing with the module itself becomes part of its caller.
  void RetargetHook(const Node& original, Node* twin) {
    torch::jit::Function* hook = CalleeOf(original);
    if (hook == nullptr || twin->inputs().size() < 2) return;
    if (replacement_types_.count(twin->input(1)->type().get()) != 0 && IgnoresReceiver(*hook)) {
      Node* callee = twin->input(0)->node();
      twin->removeInput(0);
      torch::jit::inlineCallTo(twin, &torch::jit::toGraphFunction(*hook));
      if (!callee->hasUses()) callee->destroy();
      return;
    }
    const auto found = hooks_.find(std::make_pair(hook, twin->input(1)->type().get()));
    if (found == hooks_.end()) return;
    Node* old_constant = twin->input(0)->node();
    Node* constant = twin->owningGraph()->create(c10::prim::Constant);
    constant->s_(c10::attr::name, hook->name());
    constant->output()->setType(c10::FunctionType::create(found->second));
    constant->insertBefore(twin);
    twin->replaceInput(0, constant->output());
    if (!old_constant->hasUses()) old_constant->destroy();
  }

  const Scope scope_;
  std::unordered_map<ObjectRef, ObjectPtr> done_;
  std::set<const c10::Type*> replacement_types_;
  // New classes.
  std::map<ClassKey, c10::ClassTypePtr> types_;
  // New hooks, by old hook and new class.
  std::map<std::pair<torch::jit::Function*, const c10::Type*>, torch::jit::Function*> hooks_;
};

}  // namespace

torch::jit::Module ReplaceModules(const torch::jit::Module& root,
                                  const std::unordered_map<ObjectRef, ObjectPtr>& replacements) {
  return torch::jit::Module(
      Rebuilder(replacements, Rebuilder::Scope::kChanged).Rebuild(root._ivalue()));
}

torch::jit::Module CopyModule(const torch::jit::Module& module) {
  return torch::jit::Module(Rebuilder({}, Rebuilder::Scope::kAll).Rebuild(module._ivalue()));
}

}  // namespace lowerd::lowering
