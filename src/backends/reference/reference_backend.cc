// The backend "reference": runs a lowered module as it was, anywhere that libtorch runs. It is
// there to try pipelines with, and to judge other backends against.

#include <string>

#include <torch/csrc/jit/backends/backend.h>
#include <torch/csrc/jit/backends/backend_preprocess.h>
#include <torch/torch.h>

#include "src/backends/reference/module_payload.h"

namespace lowerd::reference {
namespace {

constexpr char kName[] = "reference";

class ReferenceBackend final : public torch::jit::PyTorchBackendInterface {
 public:
  bool is_available() override { return true; }

  // A handle is (module, method name).
  c10::impl::GenericDict compile(c10::IValue processed,
                                 c10::impl::GenericDict method_compile_spec) override {
    const torch::jit::Module module = UnpackModule(processed);
    c10::impl::GenericDict handles(c10::StringType::get(), c10::AnyType::get());
    for (const auto& entry : method_compile_spec) {
      handles.insert(entry.key(), c10::ivalue::Tuple::create(module._ivalue(), entry.key()));
    }
    return handles;
  }

  // As PyTorch's lowered modules expect it: a tuple comes back as the list of its elements, any
  // other value as a list of one.
  c10::impl::GenericList execute(c10::IValue handle, c10::impl::GenericList inputs) override {
    const auto& elements = handle.toTupleRef().elements();
    const torch::jit::Module module(elements[0].toObject());
    const torch::jit::Method method = module.get_method(elements[1].toStringRef());
    torch::jit::Stack stack(inputs.begin(), inputs.end());
    const c10::IValue output = method(std::move(stack));
    c10::impl::GenericList outputs(c10::AnyType::get());
    const auto& returns = method.function().getSchema().returns();
    if (returns.at(0).type()->kind() == c10::TypeKind::TupleType) {
      for (const c10::IValue& element : output.toTupleRef().elements()) outputs.push_back(element);
    } else {
      outputs.push_back(output);
    }
    return outputs;
  }
};

c10::IValue Preprocess(const torch::jit::Module& module, const c10::Dict<c10::IValue, c10::IValue>&,
                       const torch::jit::BackendDebugHandleGenerator&) {
  return PackModule(module);
}

const auto kBackend = torch::jit::backend<ReferenceBackend>(kName);
const torch::jit::backend_preprocess_register kPreprocess(kName, Preprocess);

}  // namespace
}  // namespace lowerd::reference

// How a backend library states its version to lowerd; part of names and cache keys. May give null
// for a backend it does not know. A library without this function goes by its SHA-256.
extern "C" __attribute__((visibility("default"))) const char* lowerd_backend_version(
    const char* backend) {
  return std::string(backend) == lowerd::reference::kName ? LOWERD_VERSION : nullptr;
}
