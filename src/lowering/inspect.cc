#include "src/lowering/inspect.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <ATen/core/Tensor.h>

#include "src/base/type_name.h"
#include "src/lowering/module_tree.h"
#include "src/lowering/module_values.h"
#include "src/lowering/operators.h"

namespace lowerd::lowering {
namespace {

// The backend of a lowered type's name, in today's layout and the older one.
std::string BackendOf(absl::string_view type) {
  if (!IsLoweredModuleName(type) && !IsLoweredWrapperName(type)) return "";
  const std::vector<std::string> atoms = absl::StrSplit(type, '.');
  return atoms[2] == "LoweredModule" || atoms[2] == "LoweredWrapper" ? atoms[3] : atoms[2];
}

void AddParameters(const ModuleTree::Node& node, std::set<const void*>& seen,
                   v1::ModuleDescription& out, v1::ModelDescription& total) {
  const c10::ClassType& type = *node.object->type();
  for (size_t slot = 0; slot < type.numAttributes(); ++slot) {
    const c10::IValue& value = node.object->getSlot(slot);
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    const int64_t bytes = tensor.layout() == c10::kStrided
                              ? tensor.numel() * static_cast<int64_t>(tensor.element_size())
                              : 0;
    const bool parameter = type.is_parameter(slot);
    if (parameter) {
      out.set_parameter_count(out.parameter_count() + tensor.numel());
      out.set_parameter_bytes(out.parameter_bytes() + bytes);
    } else {
      out.set_buffer_count(out.buffer_count() + tensor.numel());
      out.set_buffer_bytes(out.buffer_bytes() + bytes);
    }
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      total.set_parameter_count(total.parameter_count() + tensor.numel());
      total.set_parameter_bytes(total.parameter_bytes() + bytes);
    }
  }
}

}  // namespace

v1::ModelDescription DescribeArchive(const ModelArchive& archive) {
  v1::ModelDescription out;
  out.set_file_format_version(archive.format_version());
  constexpr absl::string_view kExtra = "extra/";
  for (const ModelArchive::Record& record : archive.records()) {
    if (!absl::StartsWith(record.name, kExtra)) continue;
    v1::ExtraFile* file = out.add_extra_files();
    file->set_name(record.name.substr(kExtra.size()));
    file->set_size_bytes(record.size);
  }
  const MissingParts missing = FindMissing(archive);
  for (const std::string& name : missing.operators) out.add_missing_operators(name);
  for (const std::string& name : missing.classes) out.add_missing_classes(name);
  return out;
}

void DescribeModules(const torch::jit::Module& module, v1::ModelDescription& description) {
  const ModuleTree tree(module);
  OperatorCounts all;
  std::set<const void*> tensors;
  std::set<const torch::jit::Function*> counted;
  for (const ModuleTree::Node& node : tree.nodes()) {
    v1::ModuleDescription& out = *description.add_modules();
    out.set_path(node.path);
    for (const std::string& alias : node.aliases) out.add_aliases(alias);
    const std::string type = TypeNameOf(*node.object);
    out.set_type(type);
    out.set_lowered_to_backend(BackendOf(type));
    const auto training = node.object->type()->findAttributeSlot("training");
    if (training && node.object->getSlot(*training).isBool()) {
      out.set_training(node.object->getSlot(*training).toBool());
    }
    AddParameters(node, tensors, out, description);
    OperatorCounts own;
    for (torch::jit::Function* method : FunctionsOf(*node.object->type())) {
      v1::MethodDescription& entry = *out.add_methods();
      entry.set_name(method->name());
      entry.set_signature(absl::StrCat(c10::toString(method->getSchema())));
      const OperatorCounts counts = CountOperators(*GraphOf(*method));
      for (const auto& [name, count] : counts) {
        own[name] += count;
        if (counted.count(method) == 0) all[name] += count;
      }
      counted.insert(method);
    }
    AppendCounts(own, out.mutable_operators());
  }
  AppendCounts(all, description.mutable_operators());
}

}  // namespace lowerd::lowering
