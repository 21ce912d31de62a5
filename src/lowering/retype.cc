#include "src/lowering/retype.h"

#include <memory>
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
  explicit Rebuilder(const std::unordered_map<ObjectRef, ObjectPtr>& replacements)
      : done_(replacements) {}

  // The new object for `object`; `object` itself if nothing below it changes.
  ObjectPtr Rebuild(const ObjectPtr& object) {
    const auto found = done_.find(object.get());
    if (found != done_.end()) return found->second;
    bool changed = false;
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
  ObjectPtr CopyWith(const ObjectPtr& object, std::vector<c10::IValue> slots) {
    const c10::ClassTypePtr old_type = object->type();
    const std::shared_ptr<torch::jit::CompilationUnit> unit = object->compilation_unit();
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
    ObjectPtr copy = c10::ivalue::Object::create(c10::StrongTypePtr(unit, type), slots.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) copy->setSlot(slot, std::move(slots[slot]));

    for (torch::jit::Function* method : old_type->methods()) {
      type->addMethod(CopyFunction(*method, object, type, *unit));
    }
    for (torch::jit::Function* hook : old_type->getForwardPreHooks()) {
      type->addForwardPreHook(CopyFunction(*hook, object, type, *unit));
    }
    for (torch::jit::Function* hook : old_type->getForwardHooks()) {
      type->addForwardHook(CopyFunction(*hook, object, type, *unit));
    }
    for (const c10::ClassType::Property& property : old_type->properties()) {
      type->addProperty(
          property.name, type->findMethod(property.getter->name()),
          property.setter == nullptr ? nullptr : type->findMethod(property.setter->name()));
    }
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

    torch::jit::Function* copy =
        unit.create_function(c10::QualifiedName(*type->name(), function.name()), graph);
    const c10::TypePtr old_type = self->type();
    copy->setSchema(function.getSchema().cloneWithRemappedTypes(
        [&](c10::TypePtr at) -> c10::TypePtr { return at == old_type ? type : at; }));
    return copy;
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
    }
  }

  std::unordered_map<ObjectRef, ObjectPtr> done_;
};

}  // namespace

torch::jit::Module ReplaceModules(const torch::jit::Module& root,
                                  const std::unordered_map<ObjectRef, ObjectPtr>& replacements) {
  return torch::jit::Module(Rebuilder(replacements).Rebuild(root._ivalue()));
}

}  // namespace lowerd::lowering
