#include "src/lowering/lowered_class.h"

#include <map>
#include <memory>
#include <stack>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/backends/backend_debug_info.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/custom_class.h>

#include "src/base/error.h"
#include "src/lowering/backend_registry.h"
#include "src/lowering/retype.h"
#include "src/lowering/torch_compat.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

using c10::TypeKind;
using c10::TypePtr;

constexpr char kBackendClassPrefix[] = "__torch__.torch.classes.__backends__.";
constexpr char kDebugInfoClass[] = "__torch__.torch.classes.backendutils.BackendDebugInfo";

// Method bodies are compiled from text in which types and classes are placeholders that this
// resolver maps to the real things. So no type, default value or name of the model is ever printed
// and parsed.
class PlaceholderResolver final : public torch::jit::Resolver {
 public:
  std::string Type(TypePtr type) {
    const std::string name = absl::StrCat("LowerdType", types_.size());
    types_.emplace(name, std::move(type));
    return name;
  }
  std::string Value(std::shared_ptr<torch::jit::SugaredValue> value) {
    const std::string name = absl::StrCat("LowerdValue", values_.size());
    values_.emplace(name, std::move(value));
    return name;
  }

  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name,
                                                         torch::jit::GraphFunction&,
                                                         const torch::jit::SourceRange&) override {
    if (name == "Exception") return std::make_shared<torch::jit::ExceptionValue>(name);
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : found->second;
  }
  TypePtr resolveType(const std::string& name, const torch::jit::SourceRange&) override {
    const auto found = types_.find(name);
    return found == types_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, TypePtr> types_;
  std::map<std::string, std::shared_ptr<torch::jit::SugaredValue>> values_;
};

bool IsSupported(const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::TensorType:
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::ComplexType:
    case TypeKind::BoolType:
    case TypeKind::StringType:
    case TypeKind::NoneType:
    case TypeKind::NumberType:
    case TypeKind::DeviceObjType:
    case TypeKind::AnyType:
      return true;
    case TypeKind::ClassType:
      return !type->expectRef<c10::ClassType>().is_module();
    case TypeKind::EnumType:
      return true;
    case TypeKind::OptionalType:
    case TypeKind::ListType:
    case TypeKind::DictType:
    case TypeKind::TupleType:
    case TypeKind::UnionType:
      for (const TypePtr& inner : type->containedTypes()) {
        if (!IsSupported(inner)) return false;
      }
      return true;
    default:
      return false;
  }
}

c10::FunctionSchema WithSelf(const c10::FunctionSchema& schema, const TypePtr& self) {
  std::vector<c10::Argument> arguments = schema.arguments();
  arguments.at(0) = arguments[0].cloneWithType(self);
  return schema.cloneWithArguments(std::move(arguments));
}

// "a0: LowerdType3, a1: LowerdType4" for all arguments but the receiver, and "a0, a1".
struct Parameters {
  std::string declared;
  std::string passed;
};
Parameters DeclareParameters(const c10::FunctionSchema& schema, PlaceholderResolver& resolver) {
  std::vector<std::string> declared, passed;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const std::string name = absl::StrCat("lowerd_argument_", i);
    declared.push_back(absl::StrCat(", ", name, ": ", resolver.Type(schema.arguments()[i].type())));
    passed.push_back(name);
  }
  return {absl::StrJoin(declared, ""), absl::StrJoin(passed, ", ")};
}

// The lines that turn what execute() gives into the method's value. execute() gives a tuple as the
// list of its elements, any other value as a list of one.
struct Results {
  std::string unpacked;
  std::string checks;
  std::string value;
};
Results DescribeResults(const TypePtr& type, PlaceholderResolver& resolver) {
  const auto tuple = type->cast<c10::TupleType>();
  const std::vector<TypePtr> elements =
      tuple ? tuple->elements().vec() : std::vector<TypePtr>{type};
  std::vector<std::string> names;
  Results out;
  for (size_t i = 0; i < elements.size(); ++i) {
    const std::string name = absl::StrCat("lowerd_result_", i);
    names.push_back(name);
    if (elements[i]->kind() == TypeKind::AnyType) continue;
    absl::StrAppend(&out.checks, "        assert isinstance(", name, ", ",
                    resolver.Type(elements[i]), ")\n");
  }
  // A trailing comma makes a tuple of one.
  const std::string list = absl::StrCat(absl::StrJoin(names, ", "), names.empty() ? "" : ",");
  out.unpacked = list;
  if (!tuple) {
    out.value = names.front();
  } else if (tuple->schema()) {
    out.value =
        absl::StrCat(resolver.Value(std::make_shared<torch::jit::NamedTupleConstructor>(tuple)),
                     "(", absl::StrJoin(names, ", "), ")");
  } else {
    out.value = absl::StrCat("(", list, ")");
  }
  return out;
}

std::string LoweredMethodSource(const std::string& method, const c10::FunctionSchema& schema,
                                PlaceholderResolver& resolver) {
  const Parameters parameters = DeclareParameters(schema, resolver);
  const Results results = DescribeResults(schema.returns().at(0).type(), resolver);
  const std::string call =
      absl::StrCat("self.__backend.execute(self.__handles[\"", method, "\"], typed_inputs)");
  return absl::StrCat(
      "def ", method, "(self", parameters.declared, "):\n", "    typed_inputs: List[Any] = [",
      parameters.passed, "]\n", "    if self.__backend.is_available():\n",
      results.unpacked.empty() ? absl::StrCat("        ", call, "\n")
                               : absl::StrCat("        ", results.unpacked, " = ", call, "\n"),
      results.checks, "        return ", results.value, "\n", "    else:\n",
      "        raise Exception(\"Backend is not available.\")\n");
}

// State and life cycle, as PyTorch's runtimes expect them.
std::string LoweredCommonSource(PlaceholderResolver& resolver, const c10::ClassTypePtr& backend,
                                const c10::ClassTypePtr& debug_info) {
  const std::string backend_class =
      resolver.Value(std::make_shared<torch::jit::ClassValue>(backend));
  const std::string debug_class =
      resolver.Value(std::make_shared<torch::jit::ClassValue>(debug_info));
  return absl::StrCat(
      "def __create_backend(self):\n"
      "    self.__backend = ",
      backend_class,
      "()\n"
      "def __is_available(self):\n"
      "    return self.__backend.is_available()\n"
      "def __create_backend_debug_info(self):\n"
      "    self.__backend_debug_info = ",
      debug_class,
      "()\n"
      "def __getstate__(self):\n"
      "    return self.__method_compile_spec, self.__processed_module, True\n"
      "def __setstate__(self, state):\n"
      "    self.__method_compile_spec = state[0]\n"
      "    self.__processed_module = state[1]\n"
      "    if state[2]:\n"
      "        self.__create_backend()\n"
      "        self.__create_backend_debug_info()\n"
      "    if self.__backend.is_available():\n"
      "        self.__handles = self.__backend.compile(self.__processed_module, "
      "self.__method_compile_spec)\n"
      "    else:\n"
      "        raise Exception(\"Backend is not available.\")\n");
}

torch::jit::NodeToDebugHandle DebugHandles(torch::jit::BackendDebugInfoRecorder& recorder,
                                           const std::shared_ptr<torch::jit::Graph>& graph) {
  torch::jit::NodeToDebugHandle out;
  std::stack<torch::jit::Block*> blocks;
  blocks.push(graph->block());
  while (!blocks.empty()) {
    torch::jit::Block* block = blocks.top();
    blocks.pop();
    for (torch::jit::Node* node : block->nodes()) {
      out.emplace(node, recorder.getNextDebugHandle(node));
      for (torch::jit::Block* inner : node->blocks()) blocks.push(inner);
    }
  }
  return out;
}

// Debug information in terms of the code in which the model was written. A node of an uploaded
// model knows its place in the file's code and, through that, the place in the original. PyTorch's
// lite serialiser numbers the places that a lowered module's debug information names, but writes
// the numbers of their originals; those that it has not seen elsewhere it writes as -1, and such a
// file does not load ("Source range tag must exist", callstack_debug_info_serialization.cpp).
class OriginalPlaces {
 public:
  torch::jit::BackendDebugInfoMapType Of(torch::jit::BackendDebugInfoMapType handles) {
    for (auto& [handle, info] : handles) {
      auto& place = std::get<torch::jit::kDebugInfoTupleSourceRangeIndex>(info);
      auto& stack = std::get<torch::jit::kDebugInfoTupleInlinedCSIndex>(info);
      place = Of(place);
      stack = Of(stack);
    }
    return handles;
  }

 private:
  static torch::jit::SourceRange Of(const torch::jit::SourceRange& place) {
    return place.findSourceRangeThatGenerated().value_or(place);
  }

  torch::jit::InlinedCallStackPtr Of(const torch::jit::InlinedCallStackPtr& stack) {
    if (!stack.defined()) return stack;
    const auto found = stacks_.find(stack.get());
    if (found != stacks_.end()) return found->second;
    TorchOptional<torch::jit::InlinedCallStackPtr> callee = stack->callee();
    if (callee.has_value()) callee = Of(*callee);
    torch::jit::InlinedCallStackPtr made =
        CopyCallStack(*stack, Of(stack->source_range()), std::move(callee));
    return stacks_[stack.get()] = std::move(made);
  }

  // Stacks of one graph share their ends.
  std::unordered_map<torch::jit::InlinedCallStack*, torch::jit::InlinedCallStackPtr> stacks_;
};

// The object that carries debug information to the serialiser: what the class's own __init__ makes.
ObjectPtr DebugInfo(const c10::ClassTypePtr& type, torch::jit::BackendDebugInfoMapType handles) {
  auto info = c10::make_intrusive<torch::jit::PyTorchBackendDebugInfo>();
  info->setDebugInfoMap(OriginalPlaces().Of(std::move(handles)));
  ObjectPtr out = c10::ivalue::Object::create(c10::StrongTypePtr(nullptr, type), 1);
  out->setSlot(0, c10::IValue::make_capsule(std::move(info)));
  return out;
}

absl::Status Preprocess(const LoweredClassSpec& spec,
                        torch::jit::BackendDebugInfoRecorder& recorder, c10::IValue& payload) {
  const std::string where = spec.path.empty() ? "the root" : absl::StrCat("module ", spec.path);
  const std::string what =
      absl::StrCat("backend \"", spec.backend, "\" on ", where, " (", spec.lowered_type, ")");
  return CatchTorch(Reason::kBackendFailed, what, [&] {
    // Own classes, shared tensors: a backend that rewrites the module changes nothing else.
    const torch::jit::Module copy = CopyModule(spec.original);
    auto make_handles = [&](const std::shared_ptr<torch::jit::Graph>& graph) {
      return DebugHandles(recorder, graph);
    };
    const auto* preprocess = FindPreprocess(spec.backend);
    payload = preprocess == nullptr ? c10::IValue(copy._ivalue())
                                    : (*preprocess)(copy, spec.compile_spec, make_handles);
    return absl::OkStatus();
  });
}

}  // namespace

std::string UnsupportedSignature(const c10::FunctionSchema& schema) {
  if (schema.arguments().empty()) return "it has no receiver";
  if (schema.is_vararg() || schema.is_varret())
    return "it takes or gives a variable number of values";
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!IsSupported(argument.type())) {
      return absl::StrCat("argument ", argument.name(), " has type ",
                          argument.type()->annotation_str());
    }
  }
  if (schema.returns().size() != 1) return "it gives no single value";
  const TypePtr& result = schema.returns()[0].type();
  if (!IsSupported(result)) return absl::StrCat("its result has type ", result->annotation_str());
  return "";
}

absl::StatusOr<LoweredModule> MakeLoweredModule(const LoweredClassSpec& spec) {
  LoweredModule out;
  torch::jit::BackendDebugInfoRecorder recorder;
  LOWERD_RETURN_IF_ERROR(Preprocess(spec, recorder, out.payload));

  LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kInternalError, spec.lowered_type, [&] {
    const c10::ClassTypePtr backend = torch::getCustomClass(kBackendClassPrefix + spec.backend);
    const c10::ClassTypePtr debug_info = torch::getCustomClass(kDebugInfoClass);
    if (backend == nullptr || debug_info == nullptr) {
      return MakeError(Reason::kBackendNotFound,
                       absl::StrCat("no loaded library registers backend \"", spec.backend, "\""));
    }
    const std::shared_ptr<torch::jit::CompilationUnit> unit = spec.original->compilation_unit();
    const c10::DictTypePtr any_dict =
        c10::DictType::create(c10::StringType::get(), c10::AnyType::get());

    torch::jit::Module lowered{c10::QualifiedName(spec.lowered_type), unit};
    lowered.register_attribute("__processed_module", c10::AnyType::get(), out.payload);
    lowered.register_attribute("__method_compile_spec", any_dict, spec.compile_spec);
    lowered.register_attribute(
        "__backend", backend,
        c10::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>()));
    lowered.register_attribute("__handles", any_dict,
                               c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get()));
    lowered.register_attribute("__backend_debug_info", c10::OptionalType::create(debug_info),
                               DebugInfo(debug_info, recorder.stopRecording()));
    torch::jit::Module wrapper{c10::QualifiedName(spec.wrapper_type), unit};
    wrapper.register_module("__loweredModule__", lowered);

    const auto resolver = std::make_shared<PlaceholderResolver>();
    std::string lowered_source = LoweredCommonSource(*resolver, backend, debug_info);
    std::string wrapper_source;
    for (const std::string& method : spec.methods) {
      const c10::FunctionSchema& schema = spec.original->type()->getMethod(method).getSchema();
      absl::StrAppend(&lowered_source, LoweredMethodSource(method, schema, *resolver));
      const Parameters parameters = DeclareParameters(schema, *resolver);
      absl::StrAppend(&wrapper_source, "def ", method, "(self", parameters.declared, "):\n",
                      "    return self.__loweredModule__.", method, "(", parameters.passed, ")\n");
    }
    const torch::jit::SimpleSelf lowered_self(lowered.type());
    unit->define(*lowered.type()->name(), lowered_source, resolver, &lowered_self);
    const torch::jit::SimpleSelf wrapper_self(wrapper.type());
    unit->define(*wrapper.type()->name(), wrapper_source, resolver, &wrapper_self);
    // Only now the original schemas, so that the wrapper may pass everything by position.
    for (const std::string& method : spec.methods) {
      const c10::FunctionSchema& schema = spec.original->type()->getMethod(method).getSchema();
      for (const torch::jit::Module& module : {lowered, wrapper}) {
        module.type()->getMethod(method).setSchema(WithSelf(schema, module.type()));
      }
    }

    out.wrapper = wrapper._ivalue();
    return absl::OkStatus();
  }));
  return out;
}

}  // namespace lowerd::lowering
