#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/custom_class.h>
#include <torch/torch.h>
#include <torch/version.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/base/sha256.h"
#include "src/base/version.h"
#include "src/lowering/backend_registry.h"
#include "src/lowering/engine.h"
#include "src/lowering/lowered_class.h"
#include "src/lowering/model_loader.h"
#include "src/lowering/retype.h"
#include "src/lowering/serialize.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

constexpr absl::string_view kBackendNamespace = "__torch__.torch.classes.__backends__.";

absl::StatusOr<v1::LibraryVersion> DescribeLibrary(const std::string& path) {
  LOWERD_ASSIGN_OR_RETURN(const Fd fd, OpenFile(path, O_RDONLY));
  LOWERD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Map(fd.get()));
  const Digest digest = Digest::Of(file.bytes());
  v1::LibraryVersion out;
  out.set_file_name(std::filesystem::path(path).filename().string());
  out.mutable_digest()->set_hash(digest.hex());
  out.mutable_digest()->set_size_bytes(digest.size_bytes());
  return out;
}

absl::StatusOr<void*> LoadLibrary(const std::string& path) {
  void* handle = nullptr;
  LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kInvalidRequest, absl::StrCat("library ", path), [&] {
    // Never closed: what it registered in libtorch cannot be taken back.
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      return MakeError(Reason::kInvalidRequest,
                       absl::StrCat("library ", path, " cannot be loaded: ", ::dlerror(),
                                    "; folders of libraries that it needs can be given to lowerd "
                                    "in LD_LIBRARY_PATH"));
    }
    return absl::OkStatus();
  }));
  return handle;
}

std::string StatedVersion(void* library, const std::string& backend) {
  using Version = const char* (*)(const char*);
  void* symbol = ::dlsym(library, "lowerd_backend_version");
  if (symbol == nullptr) return "";
  const char* version = reinterpret_cast<Version>(symbol)(backend.c_str());
  return version == nullptr ? "" : version;
}

absl::StatusOr<bool> IsAvailable(const std::string& backend) {
  bool available = false;
  LOWERD_RETURN_IF_ERROR(CatchTorch(
      Reason::kBackendFailed, absl::StrCat("asking backend ", backend, " whether it is available"),
      [&] {
        const c10::ClassTypePtr type =
            torch::getCustomClass(absl::StrCat(kBackendNamespace, backend));
        // A new instance, as generated code makes one: __init__ on an empty object.
        c10::IValue object =
            c10::ivalue::Object::create(c10::StrongTypePtr(nullptr, type), type->numAttributes());
        torch::jit::Stack stack = {object};
        type->getMethod("__init__").run(stack);
        stack = {object};
        type->getMethod("is_available").run(stack);
        available = stack.back().toBool();
        return absl::OkStatus();
      }));
  return available;
}

// Runs each part of a job once, so that children are forked warm: allocator, dispatcher, parser,
// serialisers and their lazily made tables.
absl::Status WarmUp(const Toolchain& toolchain) {
  return CatchTorch(Reason::kInternalError, "warming up libtorch", [&]() -> absl::Status {
    auto unit = std::make_shared<torch::jit::CompilationUnit>();
    torch::jit::Module leaf(c10::QualifiedName("__torch__.lowerd.Leaf"), unit);
    leaf.register_parameter("weight", torch::ones({4, 4}), /*is_buffer=*/false);
    leaf.register_attribute("training", c10::BoolType::get(), false);
    leaf.define("def forward(self, x):\n    return torch.relu(torch.matmul(x, self.weight)) + 1\n");
    torch::jit::Module root(c10::QualifiedName("__torch__.lowerd.Root"), unit);
    root.register_module("a", leaf);
    root.register_attribute("training", c10::BoolType::get(), false);
    root.define("def forward(self, x):\n    return self.a.forward(x)\n");
    std::stringstream saved;
    root.save(saved);
    torch::jit::Module loaded = torch::jit::load(saved);
    loaded.forward({torch::ones({1, 4})});
    for (const v1::Backend& backend : toolchain.backends) {
      // Backends of others may mind a model that is not theirs.
      if (backend.name() != "reference") continue;
      LoweredClassSpec spec;
      spec.backend = backend.name();
      spec.lowered_type = "torch.jit.LoweredModule.reference.__torch__.lowerd.Leaf";
      spec.wrapper_type = "torch.jit.LoweredWrapper.reference.__torch__.lowerd.Leaf";
      spec.original = loaded.attr("a").toObject();
      spec.methods = {"forward"};
      spec.compile_spec.insert("forward", "");
      LOWERD_ASSIGN_OR_RETURN(const LoweredModule lowered, MakeLoweredModule(spec));
      const torch::jit::Module replaced =
          ReplaceModules(loaded, {{spec.original.get(), lowered.wrapper}});
      for (const v1::Format format : {v1::TORCHSCRIPT, v1::LITE_BYTECODE, v1::FLATBUFFER}) {
        LOWERD_ASSIGN_OR_RETURN(const Fd sink, OpenFile("/dev/null", O_WRONLY));
        LOWERD_RETURN_IF_ERROR(WriteArtifact(replaced, format, {}, false, sink.get()));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<Toolchain> LoadToolchain(const ToolchainOptions& options) {
  // One thread, also in children: the zygote forks.
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  // A job runs each method once or never (states of lowered modules, sample inputs), so that
  // optimising it costs more than it saves; and kernels made at run time would need memory to write
  // and to execute.
  torch::jit::getExecutorMode() = false;
  Toolchain out;
  out.producer.set_lowerd_version(kVersion);
  out.producer.set_libtorch_version(TORCH_VERSION);
  for (const std::string& path : options.operator_libraries) {
    LOWERD_RETURN_IF_ERROR(LoadLibrary(path).status());
    LOWERD_ASSIGN_OR_RETURN(*out.producer.add_operator_libraries(), DescribeLibrary(path));
  }
  std::map<std::string, v1::Backend> backends;
  std::set<std::string> known = RegisteredBackends();
  for (const std::string& path : options.backend_libraries) {
    LOWERD_ASSIGN_OR_RETURN(void* library, LoadLibrary(path));
    LOWERD_ASSIGN_OR_RETURN(const v1::LibraryVersion description, DescribeLibrary(path));
    bool any = false;
    for (const std::string& name : RegisteredBackends()) {
      if (!known.insert(name).second) continue;
      any = true;
      v1::Backend& backend = backends[name];
      backend.set_name(name);
      *backend.mutable_library() = description;
      const std::string version = StatedVersion(library, name);
      backend.set_version(version.empty() ? description.digest().hash() : version);
      backend.set_has_preprocess(FindPreprocess(name) != nullptr);
      LOWERD_ASSIGN_OR_RETURN(const bool available, IsAvailable(name));
      backend.set_available(available);
    }
    if (!any) {
      return MakeError(
          Reason::kInvalidRequest,
          absl::StrCat("library ", path, " registers no backend that was not there before"));
    }
  }
  for (auto& [name, backend] : backends) {
    v1::BackendVersion* version = out.producer.add_backends();
    version->set_name(name);
    version->set_version(backend.version());
    *version->mutable_library() = backend.library();
    out.backends.push_back(std::move(backend));
  }
  LOWERD_RETURN_IF_ERROR(WarmUp(out));
  return out;
}

}  // namespace lowerd::lowering
