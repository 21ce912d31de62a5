#include "src/lowering/backend_registry.h"

#include <dlfcn.h>
#include <map>

namespace lowerd::lowering {
namespace {

// Written while libraries are loaded (static initialisers of backends run in any order, so it must
// exist before the first), read afterwards, by one thread.
std::map<std::string, torch::jit::detail::BackendPreprocessFunction>& Functions() {
  static auto& functions =
      *new std::map<std::string, torch::jit::detail::BackendPreprocessFunction>();
  return functions;
}

}  // namespace

const torch::jit::detail::BackendPreprocessFunction* FindPreprocess(const std::string& backend) {
  const auto found = Functions().find(backend);
  return found == Functions().end() ? nullptr : &found->second;
}

}  // namespace lowerd::lowering

namespace torch::jit::detail {

void registerBackendPreprocessFunction(const std::string& name,
                                       const BackendPreprocessFunction& preprocess) {
  lowerd::lowering::Functions()[name] = preprocess;
  using Register = void (*)(const std::string&, const BackendPreprocessFunction&);
  // The next definition after the program's own is libtorch's. Our own mangled name is asked for,
  // not spelled: it depends on the standard library.
  Dl_info own;
  if (::dladdr(reinterpret_cast<void*>(&registerBackendPreprocessFunction), &own) == 0 ||
      own.dli_sname == nullptr) {
    return;
  }
  void* next = ::dlsym(RTLD_NEXT, own.dli_sname);
  if (next != nullptr) reinterpret_cast<Register>(next)(name, preprocess);
}

}  // namespace torch::jit::detail
