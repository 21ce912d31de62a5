#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/output.h"
#include "client/cli/text.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

using lowerd::v1::ModelDescription;
using lowerd::v1::ModuleDescription;

// Modules in depth-first order as a tree; a module hangs below the nearest listed path above it.
class Tree {
 public:
  explicit Tree(const ModelDescription& model) : model_(model) {
    // Modules from the root to the one before.
    std::vector<int> open;
    for (int i = 0; i < model.modules_size(); ++i) {
      while (!open.empty() &&
             !IsBelow(model.modules(i).path(), model.modules(open.back()).path())) {
        open.pop_back();
      }
      parent_.push_back(open.empty() ? -1 : open.back());
      open.push_back(i);
    }
    // A module is the last child if no later one has its parent.
    last_.assign(parent_.size(), true);
    std::vector<int> last_child(parent_.size() + 1, -1);
    for (size_t i = 0; i < parent_.size(); ++i) {
      int& previous = last_child[static_cast<size_t>(parent_[i] + 1)];
      if (previous >= 0) last_[static_cast<size_t>(previous)] = false;
      previous = static_cast<int>(i);
    }
  }

  std::string Line(int index) const {
    std::string indent;
    for (int i = index; parent_[i] >= 0; i = parent_[i]) {
      const char* piece = i == index ? (last_[i] ? "└─ " : "├─ ") : (last_[i] ? "   " : "│  ");
      indent = absl::StrCat(piece, indent);
    }
    const ModuleDescription& module = model_.modules(index);
    absl::string_view name = module.path();
    if (parent_[index] >= 0) {
      const std::string& above = model_.modules(parent_[index]).path();
      if (!above.empty()) name.remove_prefix(above.size() + 1);
    }
    return absl::StrCat(indent, ShowPath(name));
  }

 private:
  static bool IsBelow(absl::string_view path, absl::string_view above) {
    return above.empty() || (path.size() > above.size() && path.substr(0, above.size()) == above &&
                             path[above.size()] == '.');
  }

  const ModelDescription& model_;
  std::vector<int> parent_;
  std::vector<bool> last_;
};

std::string Methods(const ModuleDescription& module) {
  return absl::StrJoin(module.methods(), ", ", [](std::string* out, const auto& method) {
    absl::StrAppend(out, method.name());
  });
}

std::string Notes(const ModuleDescription& module) {
  std::vector<std::string> notes;
  if (!module.lowered_to_backend().empty()) {
    notes.push_back(absl::StrCat("lowered to ", module.lowered_to_backend()));
  }
  if (!module.aliases().empty()) {
    notes.push_back(absl::StrCat("also ", absl::StrJoin(module.aliases(), ", ")));
  }
  if (module.training()) notes.push_back("training");
  return absl::StrJoin(notes, "; ");
}

int64_t OperatorTotal(const ModuleDescription& module) {
  int64_t total = 0;
  for (const auto& op : module.operators()) total += op.count();
  return total;
}

std::string ListOf(absl::string_view title,
                   const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::string out;
  for (const std::string& name : names) absl::StrAppend(&out, "  ", Printable(name), "\n");
  return out.empty() ? out : absl::StrCat("\n", title, "\n", out);
}

std::string ShowModel(const ModelDescription& model) {
  const Tree tree(model);
  Table table({"MODULE", "TYPE", "PARAMETERS", "BYTES", "OPERATORS", "METHODS", "NOTES"});
  for (int i = 0; i < model.modules_size(); ++i) {
    const ModuleDescription& module = model.modules(i);
    table.Add({tree.Line(i), module.type(), absl::StrCat(module.parameter_count()),
               FormatBytes(module.parameter_bytes() + module.buffer_bytes()),
               absl::StrCat(OperatorTotal(module)), Methods(module), Notes(module)});
  }
  std::string out = absl::StrCat("model ", model.digest().hash(), "/", model.digest().size_bytes(),
                                 ", file format ", model.file_format_version(), ", ",
                                 model.parameter_count(), " parameters and buffers, ",
                                 FormatBytes(model.parameter_bytes()), "\n\n", table.ToString());
  if (!model.modules().empty()) {
    absl::StrAppend(&out, "\nMethods of the root\n");
    for (const auto& method : model.modules(0).methods()) {
      absl::StrAppend(&out, "  ", Printable(method.signature()), "\n");
    }
  }
  Table operators({"OPERATOR", "COUNT"});
  for (const auto& op : model.operators()) operators.Add({op.name(), absl::StrCat(op.count())});
  if (!operators.empty()) absl::StrAppend(&out, "\n", operators.ToString());
  absl::StrAppend(
      &out,
      ListOf("Missing operators (load their library with lowerd --op-lib)",
             model.missing_operators()),
      ListOf("Missing classes (load their library with lowerd --op-lib)", model.missing_classes()));
  Table extra({"EXTRA FILE", "SIZE"});
  for (const auto& file : model.extra_files()) {
    extra.Add({file.name(), FormatBytes(file.size_bytes())});
  }
  if (!extra.empty()) absl::StrAppend(&out, "\n", extra.ToString());
  return out;
}

absl::Status Inspect(Session& session, const std::string& path) {
  const absl::StatusOr<client::LocalFile> model =
      client::LocalFile::Open(path, session.progress.Bytes("hash"));
  if (!model.ok()) return AsUsageError(model.status());
  const client::LocalFile* files[] = {&*model};
  LOWERD_RETURN_IF_ERROR(session.client.Upload(files, session.progress.Bytes("upload")));
  LOWERD_ASSIGN_OR_RETURN(const ModelDescription description,
                          session.client.Inspect(model->digest()));
  session.progress.Clear();
  return session.json ? PrintJson(description) : Print(ShowModel(description));
}

}  // namespace

void AddInspectCommand(CLI::App& app, CommandSet& commands) {
  auto model = std::make_shared<std::string>();
  CLI::App* command =
      AddCommand(app, "inspect", "Show a model's modules, methods, operators and what is missing",
                 "lowerctl inspect resnet18.pt");
  command->add_option("MODEL", *model, "TorchScript file")->required();
  commands.Add(command, [model](Session& session) { return Inspect(session, *model); });
}

}  // namespace lowerd::cli
