#pragma once

#include <unordered_map>

#include <torch/csrc/jit/api/module.h>

#include "src/lowering/module_tree.h"

namespace lowerd::lowering {

// The model with some module objects replaced by others of other types. A module that
// (transitively) owns a replaced one becomes a new object of a class of its own: a copy, for that
// instance, of the original class, whose graphs and schemas know the new types. So siblings of the
// same class keep theirs. Modules that own none are the very same objects as before; the original
// model stays intact. One object under several paths stays one.
//
// Forward hooks move along; those of a module that is replaced become part of its owner's methods,
// if they do nothing with the module itself.
//
// PyTorch alone cannot do this: changing an attribute's type in place leaves the old type in
// graphs, and bytecode then runs the old methods.
torch::jit::Module ReplaceModules(const torch::jit::Module& root,
                                  const std::unordered_map<ObjectRef, ObjectPtr>& replacements);

// A copy of a module and everything below it, with objects and classes of its own; tensors and
// other values are shared. Unlike torch::jit::Module::clone it keeps hooks, submodules that are
// shared inside, and attributes of interface types.
torch::jit::Module CopyModule(const torch::jit::Module& module);

}  // namespace lowerd::lowering
