#include "src/lowering/module_values.h"

#include <algorithm>

#include <torch/csrc/jit/api/function_impl.h>

namespace lowerd::lowering {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

ObjectPtr Lookup(const ModuleValues& values, const Value* value) {
  const auto found = values.find(value);
  return found == values.end() ? ObjectPtr() : found->second;
}

// Where both ways give the same object, so does the whole.
void Join(const Value* a, const Value* b, const Value* out, ModuleValues& values) {
  const ObjectPtr object = Lookup(values, a);
  if (object != nullptr && object == Lookup(values, b)) values.emplace(out, object);
}

void ResolveBlock(const Block& block, ModuleValues& values) {
  for (const Node* node : block.nodes()) {
    if (node->kind() == c10::prim::GetAttr) {
      const ObjectPtr owner = Lookup(values, node->input(0));
      if (owner == nullptr) continue;
      const auto slot = owner->type()->findAttributeSlot(node->s(c10::attr::name));
      if (!slot) continue;
      const c10::IValue& value = owner->getSlot(*slot);
      if (IsModule(value)) values.emplace(node->output(), value.toObject());
      continue;
    }
    if (node->kind() == c10::prim::Loop) {
      // Inputs: trip count, condition, carried. The body's: iteration, carried.
      const Block* body = node->blocks().at(0);
      for (size_t i = 1; i < body->inputs().size(); ++i) {
        const ObjectPtr object = Lookup(values, node->input(i + 1));
        if (object != nullptr) values.emplace(body->inputs()[i], object);
      }
      ResolveBlock(*body, values);
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        Join(node->input(i + 2), body->outputs().at(i + 1), node->outputs()[i], values);
      }
      continue;
    }
    for (const Block* inner : node->blocks()) ResolveBlock(*inner, values);
    if (node->kind() == c10::prim::If) {
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        Join(node->blocks().at(0)->outputs().at(i), node->blocks().at(1)->outputs().at(i),
             node->outputs()[i], values);
      }
    } else if (node->kind() == c10::prim::unchecked_cast ||
               node->kind() == c10::prim::unchecked_unwrap_optional) {
      const ObjectPtr object = Lookup(values, node->input(0));
      if (object != nullptr) values.emplace(node->output(), object);
    }
  }
}

}  // namespace

ModuleValues ResolveModuleValues(const torch::jit::Graph& graph, const ObjectPtr& self) {
  ModuleValues values;
  if (!graph.inputs().empty()) values.emplace(graph.inputs()[0], self);
  ResolveBlock(*graph.block(), values);
  return values;
}

void ForEachNode(const Block& block, const std::function<void(const Node&)>& visit) {
  for (const Node* node : block.nodes()) {
    visit(*node);
    for (const Block* inner : node->blocks()) ForEachNode(*inner, visit);
  }
}

std::shared_ptr<torch::jit::Graph> GraphOf(torch::jit::Function& function) {
  function.ensure_defined();
  return torch::jit::toGraphFunction(function).graph();
}

torch::jit::Function* CalleeOf(const Node& node) {
  if (node.kind() != c10::prim::CallFunction) return nullptr;
  const auto type = node.input(0)->type()->cast<c10::FunctionType>();
  if (type == nullptr || torch::jit::tryToGraphFunction(*type->function()) == nullptr) {
    return nullptr;
  }
  return type->function();
}

bool IsHookOf(const torch::jit::Function* function, const c10::ClassType& type) {
  const auto& before = type.getForwardPreHooks();
  const auto& after = type.getForwardHooks();
  return std::find(before.begin(), before.end(), function) != before.end() ||
         std::find(after.begin(), after.end(), function) != after.end();
}

bool IgnoresReceiver(torch::jit::Function& function) {
  return !GraphOf(function)->inputs().at(0)->hasUses();
}

std::vector<torch::jit::Function*> FunctionsOf(const c10::ClassType& type) {
  std::vector<torch::jit::Function*> out = type.methods();
  for (torch::jit::Function* hook : type.getForwardPreHooks()) out.push_back(hook);
  for (torch::jit::Function* hook : type.getForwardHooks()) out.push_back(hook);
  return out;
}

}  // namespace lowerd::lowering
