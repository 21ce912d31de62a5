#include "server/operation_page.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "lowerd/v1/lowering.pb.h"
#include "server/status_text.h"

namespace lowerd::server {
namespace {

// Rows that a page shows of a list; the manifest has all.
constexpr int kMaxRows = 500;
// Modules further down stand in one line with what is between: the tree is walked recursively.
constexpr int kMaxDepth = 100;

// A module on the way to lowered ones, or one of them.
struct Node {
  std::string name;
  const v1::LoweredModule* lowered = nullptr;
  // The path is another one of an object that the manifest lists elsewhere.
  bool alias = false;
  std::vector<std::unique_ptr<Node>> children;

  Node& Child(absl::string_view child) {
    for (const std::unique_ptr<Node>& node : children) {
      if (node->name == child) return *node;
    }
    children.push_back(std::make_unique<Node>());
    children.back()->name = std::string(child);
    return *children.back();
  }
};

void AddPath(Node& root, const std::string& path, const v1::LoweredModule& module, bool alias) {
  Node* node = &root;
  if (!path.empty()) {
    for (const absl::string_view name : absl::StrSplit(path, absl::MaxSplits('.', kMaxDepth))) {
      node = &node->Child(name);
    }
  }
  node->lowered = &module;
  node->alias = alias;
}

void AddLowered(const Node& node, Html& out) {
  const v1::LoweredModule& module = *node.lowered;
  int64_t operators = 0;
  for (const v1::OperatorCount& op : module.operators()) operators += op.count();
  out.Raw(" <span class=\"badge\">").Text(module.backend()).Raw("</span> <span class=\"quiet\">");
  out.Text(absl::StrJoin(module.methods(), ", "));
  out.Text(absl::StrCat(" · ", operators, " operators · ", SizeText(module.payload_size_bytes())));
  if (node.alias) out.Text(absl::StrCat(" · the same object as ", module.path()));
  out.Raw("</span></span><div class=\"code quiet\">")
      .Text(absl::StrCat(module.original_type(), " → ", module.lowered_type()))
      .Raw("</div>");
}

void AddTree(const Node& node, Html& out) {
  if (node.lowered != nullptr) {
    out.Raw("<li class=\"lowered\">");
  } else {
    out.Raw("<li>");
  }
  out.Raw("<span class=\"node\"><code>").Text(node.name).Raw("</code>");
  if (node.lowered != nullptr) {
    AddLowered(node, out);
  } else {
    out.Raw("</span>");
  }
  if (!node.children.empty()) {
    out.Raw("<ul>");
    for (const std::unique_ptr<Node>& child : node.children) AddTree(*child, out);
    out.Raw("</ul>");
  }
  out.Raw("</li>");
}

Html TreeHtml(const v1::Manifest& manifest) {
  Node root;
  root.name = manifest.model().type();
  int shown = 0;
  for (const v1::LoweredModule& module : manifest.lowered_modules()) {
    if (++shown > kMaxRows) break;
    AddPath(root, module.path(), module, /*alias=*/false);
    for (const std::string& path : module.aliases()) AddPath(root, path, module, /*alias=*/true);
  }
  Html out;
  out.Raw("<h2>Module tree</h2><p class=\"quiet\">")
      .Text(absl::StrCat(manifest.lowered_modules_size()));
  out.Raw(" modules were lowered (in colour); of the others only their owners are shown.</p>")
      .Raw("<ul class=\"tree\">");
  AddTree(root, out);
  out.Raw("</ul>");
  if (shown > kMaxRows) out.Raw("<p class=\"quiet\">The manifest lists more.</p>");
  return out;
}

void Row(Html& out, absl::string_view first, absl::string_view second, absl::string_view third) {
  out.Raw("<tr><td><code>").Text(first).Raw("</code></td><td>").Text(second);
  out.Raw("</td><td><code>").Text(third).Raw("</code></td></tr>");
}

Html ManifestHtml(const v1::Manifest& manifest) {
  Html out = TreeHtml(manifest);
  out.Raw("<h2>Artifacts</h2><div class=\"scroll\"><table>");
  for (const v1::Artifact& artifact : manifest.artifacts()) {
    Row(out, artifact.file_name(), SizeText(artifact.digest().size_bytes()),
        artifact.digest().hash());
  }
  out.Raw("</table></div><h2>Checks on the finished files</h2><div class=\"scroll\"><table>");
  for (const v1::Verification& check : manifest.verifications()) {
    Row(out, check.check(), check.result(), "");
  }
  out.Raw("</table></div><h2>Operators that stay outside</h2><div class=\"scroll\"><table>");
  int shown = 0;
  for (const v1::OperatorCount& op : manifest.remaining_operators()) {
    if (++shown > kMaxRows) break;
    Row(out, op.name(), absl::StrCat(op.count()), "");
  }
  return out.Raw("</table></div>");
}

void Fact(Html& out, absl::string_view name, absl::string_view value) {
  if (value.empty()) return;
  out.Raw("<tr><th>").Text(name).Raw("</th><td class=\"code\">").Text(value).Raw("</td></tr>");
}

}  // namespace

Html OperationHtml(const jobs::Operation& operation) {
  Html out;
  out.Raw("<div class=\"scroll\"><table><tr><th>State</th><td>")
      .Add(StateHtml(operation))
      .Raw("</td></tr>");
  const jobs::Progress& progress = operation.progress;
  if (!operation.done() && progress.targets_total > 0) {
    Fact(out, "Targets", absl::StrCat(progress.targets_done, " of ", progress.targets_total));
  }
  Fact(out, "Client", operation.client);
  // The model is the first input.
  if (!operation.inputs.empty()) Fact(out, "Model", operation.inputs.front().ToString());
  Fact(out, "Request id", operation.request_id);
  Fact(out, "Created", TimeText(operation.created));
  if (operation.started) {
    const absl::Time end = operation.ended.value_or(absl::Now());
    Fact(out, "Started", TimeText(*operation.started));
    Fact(out, operation.done() ? "Took" : "Runs for", ShortDuration(end - *operation.started));
  }
  if (operation.attempt > 1) Fact(out, "Attempt", absl::StrCat(operation.attempt));
  if (operation.done() && !operation.error.ok()) Fact(out, "Error", operation.error.message());
  out.Raw("</table></div>");
  v1::LowerModelResponse response;
  if (operation.done() && operation.error.ok() && response.ParseFromString(operation.result)) {
    out.Add(ManifestHtml(response.manifest()));
  }
  return out;
}

}  // namespace lowerd::server
