#pragma once

#include <torch/csrc/jit/api/module.h>

namespace lowerd::reference {

// A module as a value that needs no class definitions around it, so that it travels through
// TorchScript, lite bytecode and flatbuffer alike: a tuple of
//   - a uint8 tensor that holds a TorchScript archive of the module with empty tensors in the place
//     of its plain tensor attributes, and
//   - the list of those tensors, in the order in which the attributes are met.
// The tensors themselves are not copied: storage that the module shares with others stays shared,
// and what a method changes in place is saved with the model.
//
// A module with its own __getstate__ goes into the archive whole.
c10::IValue PackModule(const torch::jit::Module& module);

// The module again. Throws c10::Error if `payload` was not made by PackModule.
torch::jit::Module UnpackModule(const c10::IValue& payload);

}  // namespace lowerd::reference
