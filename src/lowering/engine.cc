#include "src/lowering/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <torch/csrc/jit/mobile/import.h>
#include <torch/csrc/jit/mobile/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/torch.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/base/sha256.h"
#include "src/base/type_name.h"
#include "src/lowering/artifact_verifier.h"
#include "src/lowering/compile_spec.h"
#include "src/lowering/inspect.h"
#include "src/lowering/lowered_class.h"
#include "src/lowering/model_archive.h"
#include "src/lowering/model_loader.h"
#include "src/lowering/module_tree.h"
#include "src/lowering/planner.h"
#include "src/lowering/retype.h"
#include "src/lowering/sample_check.h"
#include "src/lowering/serialize.h"
#include "src/lowering/torch_compat.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

using State = v1::LowerModelMetadata;

constexpr int64_t kMaxExtraFile = int64_t{256} << 20;

struct OpenModel {
  MappedFile file;
  LoadedModel loaded;
  // NamedTuples and empty tuples, of which the lite interpreter reads some only.
  bool has_odd_tuples = false;
};

bool HasOddTuples(const ModelArchive& archive) {
  for (const ModelArchive::Record& record : archive.records()) {
    if (!absl::StartsWith(record.name, "code/") || !absl::EndsWith(record.name, ".py")) continue;
    const auto code = archive.Read(record);
    if (!code.ok()) continue;
    if (absl::StrContains(*code, "(NamedTuple):") || absl::StrContains(*code, "Tuple[()]")) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<ModelArchive> OpenArchive(const MappedFile& file) {
  ModelArchive::Limits limits;
  limits.max_format_version = caffe2::serialize::kMaxSupportedFileFormatVersion;
  return ModelArchive::Open(file.bytes(), limits);
}

absl::StatusOr<OpenModel> Load(const JobFiles& files) {
  LOWERD_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Map(files.model));
  LOWERD_ASSIGN_OR_RETURN(const ModelArchive archive, OpenArchive(file));
  LOWERD_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(archive, file.bytes()));
  const bool has_odd_tuples = HasOddTuples(archive);
  return OpenModel{std::move(file), std::move(loaded), has_odd_tuples};
}

std::string BackendVersionOf(const Toolchain& toolchain, const std::string& name) {
  for (const v1::Backend& backend : toolchain.backends) {
    if (backend.name() == name) return backend.version();
  }
  return "";
}

// SHA-256 over (model digest, path, backend, version, compile spec), each with its length first.
std::string IdentityOf(const std::string& model, const PlannedTarget& target,
                       const std::string& version) {
  Sha256 sha;
  for (const std::string& field :
       {model, target.node->path, target.backend, version, target.compile_spec.hex()}) {
    sha.Update(absl::StrCat(field.size(), ":", field));
  }
  const Digest::Hash hash = sha.Finish();
  return std::string(hash.begin(), hash.end());
}

// Final names of all targets, in order.
absl::StatusOr<std::vector<std::string>> NameTargets(const v1::LowerModelRequest& request,
                                                     const LoweringScheme& scheme,
                                                     const Toolchain& toolchain, JobHost& host) {
  internal::ClaimNames claims;
  for (const PlannedTarget& target : scheme.targets) {
    auto* claim = claims.add_claims();
    const std::string type = TypeNameOf(*target.node->object);
    const std::string version = BackendVersionOf(toolchain, target.backend);
    claim->set_base_name(LoweredModuleBaseName(target.backend, type));
    claim->set_identity(IdentityOf(request.model().hash(), target, version));
    claim->set_module_path(target.node->path);
    claim->set_backend(target.backend);
    claim->set_backend_version(version);
    claim->set_original_type(type);
    claim->set_compile_spec_sha256(target.compile_spec.hex());
  }
  LOWERD_ASSIGN_OR_RETURN(const std::vector<uint32_t> mangles, host.ClaimNames(claims));
  if (mangles.size() != scheme.targets.size()) {
    return MakeError(Reason::kInternalError,
                     "the registry gave another number of names than asked for");
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < mangles.size(); ++i) {
    names.push_back(MangledName(claims.claims(static_cast<int>(i)).base_name(), mangles[i]));
  }
  return names;
}

// Methods and signatures, the same for plans and manifests.
template <typename Entry>
void DescribeTarget(const PlannedTarget& target, Entry& entry) {
  entry.set_path(target.node->path);
  for (const std::string& alias : target.node->aliases) entry.add_aliases(alias);
  entry.set_backend(target.backend);
  entry.set_original_type(TypeNameOf(*target.node->object));
  for (const v1::Method& method : target.methods) {
    entry.add_methods(method.name());
    (*entry.mutable_signatures())[method.name()] =
        c10::toString(target.node->object->type()->getMethod(method.name()).getSchema());
  }
  AppendCounts(target.operators, entry.mutable_operators());
}

// The toolchain with only the backends that are used.
v1::Producer ProducerFor(const Toolchain& toolchain, const LoweringScheme& scheme) {
  v1::Producer out = toolchain.producer;
  out.clear_backends();
  for (const v1::BackendVersion& backend : toolchain.producer.backends()) {
    for (const PlannedTarget& target : scheme.targets) {
      if (target.backend != backend.name()) continue;
      *out.add_backends() = backend;
      break;
    }
  }
  return out;
}

void DescribePayload(const c10::IValue& payload, v1::LoweredModule& entry) {
  // Tensors are hashed as they lie in memory; the pickle names only their shapes.
  std::vector<at::Tensor> tensors;
  const std::vector<char> pickle = torch::jit::pickle(payload, &tensors);
  Sha256 sha;
  sha.Update(absl::string_view(pickle.data(), pickle.size()));
  int64_t bytes = static_cast<int64_t>(pickle.size());
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.contiguous();
    const size_t size = static_cast<size_t>(dense.numel()) * dense.element_size();
    sha.Update(absl::string_view(static_cast<const char*>(dense.data_ptr()), size));
    bytes += static_cast<int64_t>(size);
  }
  entry.set_payload_size_bytes(bytes);
  entry.set_payload_sha256(Digest(sha.Finish(), bytes).hex());
}

absl::StatusOr<torch::jit::Module> LowerTargets(const JobFiles& files, const LoadedModel& model,
                                                const LoweringScheme& scheme,
                                                const std::vector<std::string>& names,
                                                JobHost& host, v1::Manifest& manifest) {
  const int total = static_cast<int>(scheme.targets.size());
  std::unordered_map<ObjectRef, ObjectPtr> replacements;
  for (int i = 0; i < total; ++i) {
    host.OnProgress(State::LOWERING, i, total);
    const PlannedTarget& target = scheme.targets[static_cast<size_t>(i)];
    LoweredClassSpec spec;
    spec.backend = target.backend;
    spec.path = target.node->path;
    spec.lowered_type = names[static_cast<size_t>(i)];
    spec.wrapper_type = WrapperNameOf(spec.lowered_type);
    spec.original = target.node->object;
    spec.methods = target.MethodNames();
    LOWERD_ASSIGN_OR_RETURN(spec.compile_spec, ToMethodCompileSpec(target.methods, files.blobs));
    LOWERD_ASSIGN_OR_RETURN(LoweredModule lowered, MakeLoweredModule(spec));
    replacements.emplace(target.node->object.get(), lowered.wrapper);

    v1::LoweredModule& entry = *manifest.add_lowered_modules();
    DescribeTarget(target, entry);
    entry.set_lowered_type(spec.lowered_type);
    entry.set_wrapper_type(spec.wrapper_type);
    entry.mutable_compile_spec_digest()->set_hash(target.compile_spec.hex());
    entry.mutable_compile_spec_digest()->set_size_bytes(target.compile_spec.size_bytes());
    LOWERD_RETURN_IF_ERROR(CatchTorch(
        Reason::kUnsupportedByFormat,
        absl::StrCat("what backend ", target.backend, " made of ", target.node->path), [&] {
          DescribePayload(lowered.payload, entry);
          return absl::OkStatus();
        }));
  }
  host.OnProgress(State::LOWERING, total, total);
  torch::jit::Module lowered;
  LOWERD_RETURN_IF_ERROR(CatchTorch(
      Reason::kInternalError, "giving the owners of lowered modules classes of their own", [&] {
        lowered = ReplaceModules(model.module, replacements);
        return absl::OkStatus();
      }));
  return lowered;
}

absl::Status AddExtraFiles(const v1::LowerModelRequest& request, const JobFiles& files,
                           std::unordered_map<std::string, std::string>& extra_files) {
  for (const auto& [name, digest] : request.extra_files()) {
    const auto blob = files.blobs.find(digest.hash());
    // A file may be the model itself.
    const int fd = blob != files.blobs.end() ? blob->second : files.model;
    LOWERD_ASSIGN_OR_RETURN(extra_files[name], ReadFileToString(fd, kMaxExtraFile));
  }
  return absl::OkStatus();
}

std::string FileSuffix(v1::Format format) {
  switch (format) {
    case v1::LITE_BYTECODE:
      return ".ptl";
    case v1::FLATBUFFER:
      return ".ff";
    default:
      return ".pt";
  }
}

// Lowered types that the model had before, by name.
std::vector<std::string> LoweredBefore(const ModuleTree& tree) {
  std::set<std::string> names;
  for (const ModuleTree::Node& node : tree.nodes()) {
    const std::string type = TypeNameOf(*node.object);
    if (IsLoweredModuleName(type)) names.insert(type);
  }
  return {names.begin(), names.end()};
}

// Of a module and all below; a module that is held twice counts once.
int64_t ParameterBytes(const ModuleTree& tree, const ModuleTree::Node& node,
                       std::set<ObjectRef>& seen) {
  if (!seen.insert(node.object.get()).second) return 0;
  int64_t bytes = 0;
  const c10::ClassType& type = *node.object->type();
  for (size_t slot = 0; slot < type.numAttributes(); ++slot) {
    const c10::IValue& value = node.object->getSlot(slot);
    if (!type.is_parameter(slot) || !value.isTensor() || !value.toTensor().defined()) continue;
    bytes += value.toTensor().numel() * static_cast<int64_t>(value.toTensor().element_size());
  }
  for (const auto& [name, index] : node.children) {
    bytes += ParameterBytes(tree, tree.nodes()[index], seen);
  }
  return bytes;
}

// Fills in what each type was called in the uploaded model, by walking both trees side by side.
void NameOriginals(const ModuleTree& before, const ModuleTree& after, v1::Manifest& manifest) {
  std::map<std::string, std::string> by_path, originals;
  for (const ModuleTree::Node& node : before.nodes()) {
    by_path.emplace(node.path, TypeNameOf(*node.object));
  }
  for (const ModuleTree::Node& node : after.nodes()) {
    const auto found = by_path.find(node.path);
    if (found != by_path.end()) originals.emplace(TypeNameOf(*node.object), found->second);
  }
  for (const v1::LoweredModule& module : manifest.lowered_modules()) {
    originals[module.lowered_type()] = module.original_type();
    originals[module.wrapper_type()] = module.original_type();
  }
  for (v1::Type& type : *manifest.mutable_types()) {
    const auto found = originals.find(type.name());
    if (found != originals.end()) type.set_original_name(found->second);
  }
}

}  // namespace

absl::StatusOr<v1::Manifest> Lower(const v1::LowerModelRequest& request, const JobFiles& files,
                                   const Toolchain& toolchain, JobHost& host) {
  host.OnProgress(State::LOADING, 0, 0);
  LOWERD_ASSIGN_OR_RETURN(OpenModel model, Load(files));
  const ModuleTree tree(model.loaded.module);
  LoweringScheme scheme;
  LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kModelCorrupt, "reading the model's code", [&] {
    scheme = MakeScheme(tree, request);
    return absl::OkStatus();
  }));
  LOWERD_RETURN_IF_ERROR(FirstProblem(scheme.problems));
  LOWERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          NameTargets(request, scheme, toolchain, host));
  LOWERD_RETURN_IF_ERROR(AddExtraFiles(request, files, model.loaded.extra_files));

  v1::Manifest manifest;
  *manifest.mutable_model()->mutable_digest() = request.model();
  manifest.mutable_model()->set_type(TypeNameOf(*tree.root().object));
  *manifest.mutable_producer() = ProducerFor(toolchain, scheme);
  AppendCounts(scheme.remaining, manifest.mutable_remaining_operators());

  // The original's outputs first: running it may change its buffers, which the artifacts share.
  LOWERD_ASSIGN_OR_RETURN(SampleCheck samples,
                          SampleCheck::Run(request, files, model.loaded.module));
  bool runs_here = true;
  for (const v1::Backend& backend : toolchain.backends) {
    if (backend.available()) continue;
    for (const PlannedTarget& target : scheme.targets) {
      if (target.backend != backend.name()) continue;
      samples.SkipArtifacts(backend.name());
      runs_here = false;
    }
  }
  LOWERD_ASSIGN_OR_RETURN(const torch::jit::Module lowered,
                          LowerTargets(files, model.loaded, scheme, names, host, manifest));

  const int targets = static_cast<int>(scheme.targets.size());
  for (int i = 0; i < request.formats_size(); ++i) {
    host.OnProgress(State::SERIALIZING, targets, targets);
    const v1::Format format = request.formats(i);
    LOWERD_RETURN_IF_ERROR(WriteArtifact(lowered, format, model.loaded.extra_files,
                                         request.debug_info(), files.artifacts.at(format)));
    v1::Artifact* artifact = manifest.add_artifacts();
    artifact->set_format(format);
    artifact->set_file_name(absl::StrCat(request.artifact_stem(), ".lowered", FileSuffix(format)));
  }

  std::vector<ArtifactContents> contents;
  for (int i = 0; i < request.formats_size(); ++i) {
    host.OnProgress(State::VERIFYING, targets, targets);
    const v1::Format format = request.formats(i);
    LOWERD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Map(files.artifacts.at(format)));
    LOWERD_ASSIGN_OR_RETURN(ArtifactContents read, ReadArtifact(format, file.bytes()));
    contents.push_back(std::move(read));
    if (model.has_odd_tuples && format != v1::TORCHSCRIPT && runs_here) {
      LOWERD_RETURN_IF_ERROR(CheckLiteLoads(format, file.bytes()));
    }
    LOWERD_RETURN_IF_ERROR(samples.Check(format, file.bytes()));
  }
  LOWERD_RETURN_IF_ERROR(VerifyArtifacts(contents, LoweredBefore(tree), manifest));
  samples.Describe(manifest);
  NameOriginals(tree, ModuleTree(lowered), manifest);
  return manifest;
}

absl::StatusOr<v1::LoweringPlan> Plan(const v1::LowerModelRequest& request, const JobFiles& files,
                                      const Toolchain& toolchain, JobHost& host) {
  host.OnProgress(State::LOADING, 0, 0);
  LOWERD_ASSIGN_OR_RETURN(const OpenModel model, Load(files));
  const ModuleTree tree(model.loaded.module);
  v1::LoweringPlan plan;
  *plan.mutable_model()->mutable_digest() = request.model();
  plan.mutable_model()->set_type(TypeNameOf(*tree.root().object));
  LoweringScheme scheme;
  LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kModelCorrupt, "reading the model's code", [&] {
    scheme = MakeScheme(tree, request);
    return absl::OkStatus();
  }));
  *plan.mutable_producer() = ProducerFor(toolchain, scheme);
  for (const Problem& problem : scheme.problems) {
    v1::PlanProblem* entry = plan.add_problems();
    entry->set_reason(std::string(ReasonName(problem.reason)));
    entry->set_path(problem.path);
    entry->set_message(problem.message);
  }
  LOWERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          NameTargets(request, scheme, toolchain, host));
  std::set<std::string> owners;
  for (size_t i = 0; i < scheme.targets.size(); ++i) {
    const PlannedTarget& target = scheme.targets[i];
    // One that lacks a method is among the problems and has no signature to show.
    const bool whole =
        std::all_of(target.methods.begin(), target.methods.end(), [&](const v1::Method& method) {
          return target.node->object->type()->findMethod(method.name()) != nullptr;
        });
    if (!whole) continue;
    v1::PlannedModule& entry = *plan.add_modules();
    DescribeTarget(target, entry);
    entry.set_lowered_type(names[i]);
    entry.set_wrapper_type(WrapperNameOf(names[i]));
    std::set<ObjectRef> seen;
    entry.set_parameter_bytes(ParameterBytes(tree, *target.node, seen));
  }
  const std::set<ObjectRef> targets = scheme.TargetObjects();
  for (const ModuleTree::Node& node : tree.nodes()) {
    if (targets.count(node.object.get()) != 0) continue;
    std::string why = "is no target";
    bool inside = false;
    for (const PlannedTarget& target : scheme.targets) {
      const std::string& path = target.node->path;
      if (node.path.empty() || path.compare(0, node.path.size() + 1, node.path + ".") == 0) {
        why = absl::StrCat("owns ", path);
        break;
      }
      inside |= path.empty() || node.path.compare(0, path.size() + 1, path + ".") == 0;
    }
    if (inside) continue;
    v1::StayingModule* entry = plan.add_staying_modules();
    entry->set_path(node.path);
    entry->set_type(TypeNameOf(*node.object));
    entry->set_why(why);
  }
  AppendCounts(scheme.remaining, plan.mutable_remaining_operators());
  return plan;
}

absl::StatusOr<v1::ModelDescription> Inspect(const v1::InspectModelRequest& request,
                                             const JobFiles& files, const Toolchain&) {
  LOWERD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Map(files.model));
  LOWERD_ASSIGN_OR_RETURN(const ModelArchive archive, OpenArchive(file));
  v1::ModelDescription description = DescribeArchive(archive);
  *description.mutable_digest() = request.model();
  auto loaded = LoadModel(archive, file.bytes());
  if (!loaded.ok()) {
    // What is missing is listed already; the rest cannot be told without it.
    if (HasReason(loaded.status(), Reason::kMissingOperators) ||
        HasReason(loaded.status(), Reason::kMissingClasses)) {
      return description;
    }
    return loaded.status();
  }
  LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kModelCorrupt, "reading the model's code", [&] {
    DescribeModules(loaded->module, description);
    return absl::OkStatus();
  }));
  return description;
}

}  // namespace lowerd::lowering
