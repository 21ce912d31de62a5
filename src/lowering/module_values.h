#pragma once

#include <functional>
#include <unordered_map>

#include <torch/csrc/jit/ir/ir.h>

#include "src/lowering/module_tree.h"

namespace lowerd::lowering {

// Which module object each module-typed value of a method's graph is, when the method runs on a
// given object. Attribute reads of a fixed object are fixed too, so this is exact, also through
// attributes of interface types; only a module that is picked by control flow at run time has no
// entry.
using ModuleValues = std::unordered_map<const torch::jit::Value*, ObjectPtr>;
ModuleValues ResolveModuleValues(const torch::jit::Graph& graph, const ObjectPtr& self);

// Calls `visit` for each node of the block and of its inner blocks, in order.
void ForEachNode(const torch::jit::Block& block,
                 const std::function<void(const torch::jit::Node&)>& visit);

// The graph of a method or function; compiles it first if that has not happened yet.
std::shared_ptr<torch::jit::Graph> GraphOf(torch::jit::Function& function);

// The TorchScript function that a prim::CallFunction calls; null for any other node or callee.
torch::jit::Function* CalleeOf(const torch::jit::Node& node);

// True if `function` is a forward hook of the type. Owners call hooks as functions, with the module
// as the first argument.
bool IsHookOf(const torch::jit::Function* function, const c10::ClassType& type);

// True if the function does nothing with its first argument.
bool IgnoresReceiver(torch::jit::Function& function);

// Methods of the type and its forward hooks: everything that has a graph.
std::vector<torch::jit::Function*> FunctionsOf(const c10::ClassType& type);

}  // namespace lowerd::lowering
