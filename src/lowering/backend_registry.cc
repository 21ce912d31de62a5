#include "src/lowering/backend_registry.h"

#include <dlfcn.h>
#include <map>

#include <torch/custom_class.h>

namespace lowerd::lowering {
namespace {

constexpr char kBackendNamespace[] = "__torch__.torch.classes.__backends__.";

struct Registrations {
  std::set<std::string> backends;
  std::map<std::string, torch::jit::detail::BackendPreprocessFunction> preprocess;
};

// Static initialisers of libraries register in any order, so it must exist before the first, and
// never goes away.
Registrations& All() {
  static auto& all = *new Registrations();
  return all;
}

// The definition behind the program's own `function`: libtorch's. The mangled name is asked for,
// not spelled, as it depends on the standard library.
template <typename Function>
Function* Next(Function* function) {
  Dl_info own;
  if (::dladdr(reinterpret_cast<void*>(function), &own) == 0 || own.dli_sname == nullptr) {
    return nullptr;
  }
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, own.dli_sname));
}

}  // namespace

std::set<std::string> RegisteredBackends() { return All().backends; }

const torch::jit::detail::BackendPreprocessFunction* FindPreprocess(const std::string& backend) {
  const auto found = All().preprocess.find(backend);
  return found == All().preprocess.end() ? nullptr : &found->second;
}

}  // namespace lowerd::lowering

namespace torch {

void registerCustomClass(at::ClassTypePtr class_type) {
  const std::string name = class_type->name()->qualifiedName();
  const std::string prefix = lowerd::lowering::kBackendNamespace;
  if (name.compare(0, prefix.size(), prefix) == 0) {
    lowerd::lowering::All().backends.insert(name.substr(prefix.size()));
  }
  if (auto* next = lowerd::lowering::Next(&registerCustomClass)) next(std::move(class_type));
}

}  // namespace torch

namespace torch::jit::detail {

void registerBackendPreprocessFunction(const std::string& name,
                                       const BackendPreprocessFunction& preprocess) {
  lowerd::lowering::All().preprocess[name] = preprocess;
  if (auto* next = lowerd::lowering::Next(&registerBackendPreprocessFunction))
    next(name, preprocess);
}

}  // namespace torch::jit::detail
