// Backends that behave as backends in the field do on their worse days.

#include <cstdlib>
#include <string>

#include <torch/csrc/jit/backends/backend.h>
#include <torch/csrc/jit/backends/backend_preprocess.h>
#include <torch/torch.h>

namespace lowerd::test_backends {
namespace {

using SpecDict = c10::Dict<c10::IValue, c10::IValue>;
using torch::jit::BackendDebugHandleGenerator;
using torch::jit::Module;

// "test_unavailable": its device is not on this host; whoever compiles for it here is at fault.
class UnavailableBackend final : public torch::jit::PyTorchBackendInterface {
 public:
  bool is_available() override { return false; }
  c10::impl::GenericDict compile(c10::IValue, c10::impl::GenericDict) override { std::abort(); }
  c10::impl::GenericList execute(c10::IValue, c10::impl::GenericList) override { std::abort(); }
};

c10::IValue PreprocessToSpec(const Module&, const SpecDict& spec,
                             const BackendDebugHandleGenerator&) {
  return spec;
}

// Runs what its preprocess (or none) left of the module.
class ModuleBackend : public torch::jit::PyTorchBackendInterface {
 public:
  bool is_available() override { return true; }

  c10::impl::GenericDict compile(c10::IValue processed, c10::impl::GenericDict spec) override {
    c10::impl::GenericDict handles(c10::StringType::get(), c10::AnyType::get());
    for (const auto& entry : spec) {
      handles.insert(entry.key(), c10::ivalue::Tuple::create(processed, entry.key()));
    }
    return handles;
  }

  c10::impl::GenericList execute(c10::IValue handle, c10::impl::GenericList inputs) override {
    const auto& elements = handle.toTupleRef().elements();
    const Module module(elements[0].toObject());
    torch::jit::Stack stack(inputs.begin(), inputs.end());
    c10::impl::GenericList outputs(c10::AnyType::get());
    outputs.push_back(module.get_method(elements[1].toStringRef())(std::move(stack)));
    return outputs;
  }
};

// libtorch registers each C++ type once.
class PlainBackend final : public ModuleBackend {};
class RewritingBackend final : public ModuleBackend {};
class CrashingBackend final : public ModuleBackend {};

// "test_rewrites" folds weights into place as some backends do, in the module that it was given.
c10::IValue PreprocessInPlace(const Module& module, const SpecDict&,
                              const BackendDebugHandleGenerator&) {
  for (Module inner : module.modules()) {
    for (const auto& parameter : inner.named_parameters(/*recurse=*/false)) {
      inner.setattr(parameter.name, at::zeros_like(parameter.value));
    }
  }
  return module._ivalue();
}

// "test_crashes" dies by SIGABRT.
c10::IValue Crash(const Module&, const SpecDict&, const BackendDebugHandleGenerator&) {
  std::abort();
}

const auto kUnavailable = torch::jit::backend<UnavailableBackend>("test_unavailable");
const torch::jit::backend_preprocess_register kUnavailablePreprocess("test_unavailable",
                                                                     PreprocessToSpec);
// "test_plain" has no preprocess function.
const auto kPlain = torch::jit::backend<PlainBackend>("test_plain");
const auto kRewrites = torch::jit::backend<RewritingBackend>("test_rewrites");
const torch::jit::backend_preprocess_register kRewritesPreprocess("test_rewrites",
                                                                  PreprocessInPlace);
const auto kCrashes = torch::jit::backend<CrashingBackend>("test_crashes");
const torch::jit::backend_preprocess_register kCrashesPreprocess("test_crashes", Crash);

}  // namespace
}  // namespace lowerd::test_backends

// States the version of one of them; the others go by the library's digest.
extern "C" __attribute__((visibility("default"))) const char* lowerd_backend_version(
    const char* backend) {
  return std::string(backend) == "test_unavailable" ? "7.1" : nullptr;
}
