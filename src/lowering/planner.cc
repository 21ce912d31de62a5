#include "src/lowering/planner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "src/base/type_name.h"
#include "src/lowering/compile_spec.h"
#include "src/lowering/lowered_class.h"
#include "src/lowering/module_values.h"
#include "src/lowering/path_glob.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

using torch::jit::Node;
using torch::jit::Value;

constexpr size_t kMaxProblems = 1000;
constexpr size_t kSuggestions = 3;

std::string Shown(absl::string_view path) {
  return path.empty() ? "the root" : absl::StrCat("\"", absl::CHexEscape(path), "\"");
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// "; did you mean a, b, c?": the paths that are nearest.
std::string Suggest(const ModuleTree& tree, absl::string_view wanted) {
  wanted = wanted.substr(0, 200);
  std::vector<std::pair<size_t, std::string>> near;
  for (const ModuleTree::Node& node : tree.nodes()) {
    if (node.path.empty() || node.path.size() > 200) continue;
    near.emplace_back(EditDistance(wanted, node.path), node.path);
  }
  const size_t count = std::min(kSuggestions, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<ptrdiff_t>(count), near.end());
  if (count == 0) return "; the model has no submodules";
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(near[i].second);
  return absl::StrCat("; did you mean ", absl::StrJoin(names, ", "), "?");
}

// The place in the model's own source; reads of attributes have none, so what uses them stands in;
// else the place in the archive's code.
torch::jit::SourceRange ReadableRange(const Node& node) {
  std::vector<const Node*> candidates = {&node};
  for (const Value* output : node.outputs()) {
    for (const torch::jit::Use& use : output->uses()) candidates.push_back(use.user);
  }
  for (const Node* candidate : candidates) {
    const auto original = candidate->sourceRange().findSourceRangeThatGenerated();
    if (original && original->source() != nullptr) return *original;
  }
  return node.sourceRange();
}

// "def forward ... return x * self.a.w ... <--- HERE" in one line, where the model has its source.
std::string SourceOf(const Node& node) {
  const torch::jit::SourceRange range = ReadableRange(node);
  if (range.source() == nullptr) return "";
  const size_t line = range.source()->lineno_for_offset(range.start());
  const size_t column = range.start() - range.source()->offset_for_line(line);
  const std::string text = range.source()->get_line(line).str();
  const size_t indent = std::min(text.find_first_not_of(' '), column);
  const std::string where = FoldedText(text, 300);
  // Traced code may have no source.
  if (where.empty()) return "";
  // The caret, in one line: marks around the part that is meant.
  const std::string part = FoldedText(range.text().str(), 120);
  std::string out = absl::StrCat(" at \"", where, "\"");
  if (!part.empty() && part != where) absl::StrAppend(&out, ", here: ^ ", part);
  if (const auto place = range.file_line_col()) {
    absl::StrAppend(&out, " (", std::get<0>(*place), ":", std::get<1>(*place), ":",
                    column - indent + 1, ")");
  }
  return out;
}

class Planner {
 public:
  Planner(const ModuleTree& tree, const v1::LowerModelRequest& request)
      : tree_(tree), request_(request) {}

  LoweringScheme Run() {
    for (const v1::Target& target : request_.targets()) Select(target);
    for (auto& [object, target] : selected_) scheme_.targets.push_back(std::move(target));
    std::sort(
        scheme_.targets.begin(), scheme_.targets.end(),
        [](const PlannedTarget& a, const PlannedTarget& b) { return a.node->path < b.node->path; });
    for (const PlannedTarget& target : scheme_.targets) CheckTarget(target);
    CheckOverlaps();
    CheckOwners();
    CheckFormats();
    for (PlannedTarget& target : scheme_.targets) {
      target.operators = CountReachable(target.node->object, target.MethodNames(), {});
    }
    CountRemaining();
    if (request_.require_full() && !scheme_.remaining.empty()) {
      std::vector<std::string> names;
      for (const auto& [name, count] : scheme_.remaining) {
        names.push_back(absl::StrCat(name, " x", count));
      }
      Add(Reason::kNotFullyLowered, "",
          absl::StrCat("operators stay outside of lowered modules: ", absl::StrJoin(names, ", ")));
    }
    return std::move(scheme_);
  }

 private:
  void Add(Reason reason, const std::string& path, const std::string& message) {
    if (scheme_.problems.size() < kMaxProblems) scheme_.problems.push_back({reason, path, message});
  }

  // ---- selectors

  void Select(const v1::Target& target) {
    switch (target.selector_case()) {
      case v1::Target::kPathGlob: {
        const size_t before = matches_;
        for (const ModuleTree::Node& node : tree_.nodes()) {
          bool matches = GlobMatches(target.path_glob(), node.path);
          for (const std::string& alias : node.aliases) {
            matches |= GlobMatches(target.path_glob(), alias);
          }
          if (matches) Choose(node, target);
        }
        if (matches_ == before) {
          Add(Reason::kModuleNotFound, target.path_glob(),
              absl::StrCat("no submodule matches the glob ", Shown(target.path_glob()),
                           Suggest(tree_, target.path_glob())));
        }
        return;
      }
      case v1::Target::kOriginalType: {
        const size_t before = matches_;
        std::set<std::string> types;
        for (const ModuleTree::Node& node : tree_.nodes()) {
          const std::string type = TypeNameOf(*node.object);
          types.insert(Demangle(type));
          if (type == target.original_type() || Demangle(type) == target.original_type()) {
            Choose(node, target);
          }
        }
        if (matches_ == before) {
          std::vector<std::string> some(types.begin(), types.end());
          if (some.size() > 20) some.resize(20);
          Add(Reason::kModuleNotFound, "",
              absl::StrCat("no submodule has type ", Shown(target.original_type()), "; there are ",
                           absl::StrJoin(some, ", ")));
        }
        return;
      }
      default:
        if (const ModuleTree::Node* node = Resolve(target.path())) Choose(*node, target);
    }
  }

  void Choose(const ModuleTree::Node& node, const v1::Target& target) {
    ++matches_;
    PlannedTarget planned;
    planned.node = &node;
    planned.backend = target.backend();
    planned.methods = target.methods();
    planned.compile_spec = CompileSpecDigest(planned.methods);
    const auto [at, added] = selected_.emplace(node.object.get(), planned);
    if (!added && (at->second.backend != planned.backend ||
                   at->second.compile_spec != planned.compile_spec)) {
      Add(Reason::kOverlappingTargets, node.path,
          absl::StrCat(Shown(node.path), " is a target twice, for ", at->second.backend, " and ",
                       planned.backend, " or with two compile specs; name it once"));
    }
  }

  // Walks the attributes; says what is wrong where it ends.
  const ModuleTree::Node* Resolve(const std::string& path) {
    ObjectPtr at = tree_.root().object;
    std::string walked;
    if (path.empty()) return &tree_.root();
    for (const absl::string_view part : absl::StrSplit(path, '.')) {
      const std::string name(part);
      const auto slot = at->type()->findAttributeSlot(name);
      if (!slot) {
        Add(Reason::kModuleNotFound, path,
            absl::StrCat("there is no submodule ", Shown(path), ": ", Shown(walked),
                         " has no attribute \"", absl::CHexEscape(name), "\"",
                         Suggest(tree_, path)));
        return nullptr;
      }
      const std::string here = walked.empty() ? name : walked + "." + name;
      const c10::IValue& value = at->getSlot(*slot);
      if (value.isNone()) {
        Add(Reason::kModuleIsNone, path,
            absl::StrCat("the submodule ", Shown(here), " is None in this model, so ", Shown(path),
                         " cannot be lowered"));
        return nullptr;
      }
      if (!IsModule(value)) {
        Add(Reason::kModuleNotFound, path,
            absl::StrCat(Shown(here), " is no submodule but ",
                         value.isTensor() ? "a parameter or buffer"
                                          : "an attribute of type " +
                                                at->type()->getAttribute(*slot)->annotation_str(),
                         Suggest(tree_, path)));
        return nullptr;
      }
      at = value.toObject();
      walked = here;
    }
    return tree_.Find(at.get());
  }

  // ---- targets

  void CheckTarget(const PlannedTarget& target) {
    const std::string& path = target.node->path;
    const c10::ClassType& type = *target.node->object->type();
    const std::string name = TypeNameOf(*target.node->object);
    if (IsLoweredModuleName(name) || IsLoweredWrapperName(name)) {
      Add(Reason::kAlreadyLowered, path,
          absl::StrCat(Shown(path), " is lowered already: its type is ", name));
      return;
    }
    std::set<ObjectRef> seen;
    if (const std::string inner = LoweredInside(*target.node, seen); !inner.empty()) {
      Add(Reason::kAlreadyLowered, path,
          absl::StrCat(Shown(path), " holds a module that is lowered already, ", Shown(inner),
                       "; lower the original model, or name other submodules"));
      return;
    }
    for (const v1::Method& method : target.methods) {
      const torch::jit::Function* function = type.findMethod(method.name());
      if (function == nullptr) {
        std::vector<std::string> names;
        for (const torch::jit::Function* other : type.methods()) names.push_back(other->name());
        Add(Reason::kMethodNotFound, path,
            absl::StrCat(Shown(path), " of type ", name, " has no method \"",
                         absl::CHexEscape(method.name()), "\"; it has ",
                         names.empty() ? "none" : absl::StrJoin(names, ", ")));
        continue;
      }
      const std::string why = UnsupportedSignature(function->getSchema());
      if (!why.empty()) {
        Add(Reason::kUnsupportedSignature, path,
            absl::StrCat("method ", method.name(), " of ", Shown(path),
                         " cannot be lowered: ", why));
      }
    }
  }

  // The path of a lowered module in the subtree; empty if there is none.
  std::string LoweredInside(const ModuleTree::Node& node, std::set<ObjectRef>& seen) const {
    for (const auto& [name, index] : node.children) {
      const ModuleTree::Node& child = tree_.nodes()[index];
      if (!seen.insert(child.object.get()).second) continue;
      const std::string type = TypeNameOf(*child.object);
      if (IsLoweredModuleName(type) || IsLoweredWrapperName(type)) return child.path;
      std::string below = LoweredInside(child, seen);
      if (!below.empty()) return below;
    }
    return "";
  }

  // ---- overlaps

  void CheckOverlaps() {
    for (const PlannedTarget& target : scheme_.targets) {
      std::set<ObjectRef> seen;
      FindTargetsBelow(*target.node, *target.node, seen);
      for (const ModuleTree::Node* owner : OwnersOf(*target.node)) {
        const std::string type = TypeNameOf(*owner->object);
        if (IsLoweredModuleName(type) || IsLoweredWrapperName(type)) {
          Add(Reason::kAlreadyLowered, target.node->path,
              absl::StrCat(Shown(target.node->path), " lies inside ", Shown(owner->path),
                           ", which is lowered already"));
        }
      }
    }
  }

  void FindTargetsBelow(const ModuleTree::Node& top, const ModuleTree::Node& node,
                        std::set<ObjectRef>& seen) {
    for (const auto& [name, index] : node.children) {
      const ModuleTree::Node& child = tree_.nodes()[index];
      if (!seen.insert(child.object.get()).second) continue;
      if (selected_objects().count(child.object.get()) != 0) {
        Add(Reason::kOverlappingTargets, child.path,
            absl::StrCat("target ", Shown(child.path), " lies inside target ", Shown(top.path),
                         "; name only one of them"));
      }
      FindTargetsBelow(top, child, seen);
    }
  }

  std::vector<const ModuleTree::Node*> OwnersOf(const ModuleTree::Node& node) const {
    std::vector<const ModuleTree::Node*> out;
    std::string path = node.path;
    while (!path.empty()) {
      const size_t dot = path.rfind('.');
      path = dot == std::string::npos ? "" : path.substr(0, dot);
      const auto owner = by_path_.find(path);
      if (owner != by_path_.end()) out.push_back(owner->second);
    }
    return out;
  }

  // ---- methods that stay

  const std::set<ObjectRef>& selected_objects() {
    if (!objects_.has_value()) objects_ = scheme_.TargetObjects();
    return *objects_;
  }

  // Module objects that are outside of all targets: their methods stay.
  void CollectStaying(const ModuleTree::Node& node, std::set<ObjectRef>& seen,
                      std::vector<const ModuleTree::Node*>& out) {
    if (selected_objects().count(node.object.get()) != 0) return;
    if (!seen.insert(node.object.get()).second) return;
    out.push_back(&node);
    for (const auto& [name, index] : node.children) {
      CollectStaying(tree_.nodes()[index], seen, out);
    }
  }

  void CheckOwners() {
    std::map<ObjectRef, const PlannedTarget*> targets;
    for (const PlannedTarget& target : scheme_.targets) {
      targets.emplace(target.node->object.get(), &target);
    }
    std::set<ObjectRef> seen;
    std::vector<const ModuleTree::Node*> staying;
    CollectStaying(tree_.root(), seen, staying);
    for (const ModuleTree::Node* node : staying) {
      for (torch::jit::Function* function : FunctionsOf(*node->object->type())) {
        const std::shared_ptr<torch::jit::Graph> graph = GraphOf(*function);
        const ModuleValues values = ResolveModuleValues(*graph, node->object);
        ForEachNode(*graph->block(), [&](const Node& use) {
          CheckUse(use, values, targets, *node, function->name());
        });
      }
    }
  }

  void CheckUse(const Node& use, const ModuleValues& values,
                const std::map<ObjectRef, const PlannedTarget*>& targets,
                const ModuleTree::Node& owner, const std::string& method) {
    for (size_t i = 0; i < use.inputs().size(); ++i) {
      const auto value = values.find(use.inputs()[i]);
      if (value == values.end()) continue;
      const auto found = targets.find(value->second.get());
      if (found == targets.end()) {
        CheckOwnerUse(use, i, value->second, owner, method);
        continue;
      }
      const PlannedTarget& target = *found->second;
      torch::jit::Function* callee = i == 1 ? CalleeOf(use) : nullptr;
      if (callee != nullptr && !IsHookOf(callee, *target.node->object->type())) callee = nullptr;
      if (callee != nullptr && IgnoresReceiver(*callee)) continue;
      std::string what;
      if (use.kind() == c10::prim::CallMethod && i == 0) {
        const std::string& called = use.s(c10::attr::name);
        const std::vector<std::string> lowered = target.MethodNames();
        if (std::find(lowered.begin(), lowered.end(), called) != lowered.end()) continue;
        what = absl::StrCat("calls its method ", called,
                            ", which is not lowered; lower it too (method ", called, ")");
      } else if (use.kind() == c10::prim::GetAttr || use.kind() == c10::prim::SetAttr) {
        what =
            absl::StrCat(use.kind() == c10::prim::GetAttr ? "reads" : "sets", " its attribute ",
                         use.s(c10::attr::name),
                         "; lower the owner instead, or a submodule whose attributes nobody uses");
      } else if (use.kind() == c10::prim::If || use.kind() == c10::prim::Loop) {
        continue;
      } else if (callee != nullptr) {
        what = absl::StrCat("runs its forward hook ", callee->name(),
                            ", which uses the module itself; lower the owner instead");
      } else {
        what = absl::StrCat("hands it to ", use.kind().toQualString(), "; lower the owner instead");
      }
      Add(Reason::kAttributeAccess, target.node->path,
          absl::StrCat(Shown(target.node->path), " cannot be lowered alone: method ", method,
                       " of ", Shown(owner.path), " ", what, SourceOf(use)));
    }
  }

  // The class of a target's owner changes, so that it can only be used by its name as an attribute.
  void CheckOwnerUse(const Node& use, size_t input, const ObjectPtr& object,
                     const ModuleTree::Node& user, const std::string& method) {
    const ModuleTree::Node* owner = tree_.Find(object.get());
    if (owner == nullptr || owners().count(object.get()) == 0) return;
    if (use.kind() == c10::prim::GetAttr || (use.kind() == c10::prim::SetAttr && input == 0) ||
        use.kind() == c10::prim::If || use.kind() == c10::prim::Loop ||
        (use.kind() == c10::prim::CallMethod && input == 0)) {
      return;
    }
    const torch::jit::Function* callee = input == 1 ? CalleeOf(use) : nullptr;
    if (callee != nullptr && IsHookOf(callee, *object->type())) return;
    Add(Reason::kAttributeAccess, owner->path,
        absl::StrCat("no submodule of ", Shown(owner->path), " can be lowered alone: method ",
                     method, " of ", Shown(user.path), " hands it to ", use.kind().toQualString(),
                     "; lower the owner instead", SourceOf(use)));
  }

  // Modules that hold a target, at any depth.
  const std::set<ObjectRef>& owners() {
    if (!owners_.has_value()) {
      owners_.emplace();
      // Children come after their first owner, so that the last nodes are the deepest; an alias may
      // point backwards, so go on until nothing is added.
      size_t before;
      do {
        before = owners_->size();
        for (auto node = tree_.nodes().rbegin(); node != tree_.nodes().rend(); ++node) {
          for (const auto& [name, index] : node->children) {
            const ObjectRef child = tree_.nodes()[index].object.get();
            if (selected_objects().count(child) != 0 || owners_->count(child) != 0) {
              owners_->insert(node->object.get());
            }
          }
        }
      } while (owners_->size() != before);
    }
    return *owners_;
  }

  // The lite interpreter loses the field names of NamedTuples and cannot parse the type of an empty
  // tuple: what a method gives cannot be read.
  void CheckFormats() {
    const bool lite = std::any_of(request_.formats().begin(), request_.formats().end(),
                                  [](int format) { return format != v1::TORCHSCRIPT; });
    if (!lite) return;
    for (const torch::jit::Function* method : tree_.root().object->type()->methods()) {
      for (const c10::Argument& result : method->getSchema().returns()) {
        const bool named = HoldsNamedTuple(result.type());
        if (!named && !HoldsEmptyTuple(result.type())) continue;
        Add(Reason::kUnsupportedByFormat, "",
            absl::StrCat(
                "method ", method->name(), " of the root gives ",
                named ? "the NamedTuple " : "an empty tuple: ", result.type()->annotation_str(),
                ", which the lite interpreter cannot hand out; ask for TORCHSCRIPT only",
                named ? ", or give a plain tuple" : ""));
      }
    }
  }

  // Whether a value of `type` holds a tuple that `is` holds for.
  template <typename Predicate>
  static bool HoldsTuple(const c10::TypePtr& type, const Predicate& is) {
    const auto tuple = type->cast<c10::TupleType>();
    if (tuple != nullptr && is(*tuple)) return true;
    for (const c10::TypePtr& inner : type->containedTypes()) {
      if (type->kind() != c10::TypeKind::ClassType && HoldsTuple(inner, is)) return true;
    }
    return false;
  }
  static bool HoldsNamedTuple(const c10::TypePtr& type) {
    return HoldsTuple(type, [](const c10::TupleType& tuple) { return tuple.schema() != nullptr; });
  }
  static bool HoldsEmptyTuple(const c10::TypePtr& type) {
    return HoldsTuple(type, [](const c10::TupleType& tuple) { return tuple.elements().empty(); });
  }

  void CountRemaining() {
    std::vector<std::string> methods;
    for (const torch::jit::Function* method : tree_.root().object->type()->methods()) {
      if (method->name() != "__getstate__" && method->name() != "__setstate__") {
        methods.push_back(method->name());
      }
    }
    scheme_.remaining = CountReachable(tree_.root().object, methods, selected_objects());
  }

  static std::map<std::string, const ModuleTree::Node*> IndexPaths(const ModuleTree& tree) {
    std::map<std::string, const ModuleTree::Node*> out;
    for (const ModuleTree::Node& node : tree.nodes()) {
      out.emplace(node.path, &node);
      for (const std::string& alias : node.aliases) out.emplace(alias, &node);
    }
    return out;
  }

  const ModuleTree& tree_;
  const v1::LowerModelRequest& request_;
  const std::map<std::string, const ModuleTree::Node*> by_path_ = IndexPaths(tree_);
  LoweringScheme scheme_;
  std::map<ObjectRef, PlannedTarget> selected_;
  std::optional<std::set<ObjectRef>> objects_;
  std::optional<std::set<ObjectRef>> owners_;
  size_t matches_ = 0;
};

}  // namespace

std::vector<std::string> PlannedTarget::MethodNames() const {
  std::vector<std::string> out;
  for (const v1::Method& method : methods) out.push_back(method.name());
  return out;
}

std::set<ObjectRef> LoweringScheme::TargetObjects() const {
  std::set<ObjectRef> out;
  for (const PlannedTarget& target : targets) out.insert(target.node->object.get());
  return out;
}

LoweringScheme MakeScheme(const ModuleTree& tree, const v1::LowerModelRequest& request) {
  return Planner(tree, request).Run();
}

absl::Status FirstProblem(const std::vector<Problem>& problems) {
  if (problems.empty()) return absl::OkStatus();
  const Problem& first = problems.front();
  std::string message = first.message;
  if (problems.size() > 1) {
    absl::StrAppend(&message, " (and ", problems.size() - 1,
                    " more problems; PlanLowering lists all)");
  }
  return MakeError(first.reason, message, {{"path", first.path}});
}

}  // namespace lowerd::lowering
