#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>

#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/lowering_flags.h"
#include "client/cli/output.h"
#include "client/cli/text.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

using google::longrunning::Operation;
using lowerd::v1::LowerModelMetadata;

constexpr int kMaxPage = 1000;

struct ListFlags {
  std::vector<std::string> states;
  bool done = false;
  bool running = false;
  bool failed = false;
  int limit = 100;
};

// Names may be given without their collection.
std::string FullName(const std::string& name) {
  return absl::StartsWith(name, "operations/") ? name : absl::StrCat("operations/", name);
}

std::string StateOf(const Operation& operation) {
  if (operation.has_error()) {
    const std::string reason = ReasonOf(client::OperationError(operation));
    return absl::StrCat("FAILED ", reason);
  }
  return LowerModelMetadata::State_Name(client::LoweringProgress(operation).state());
}

std::string Targets(const LowerModelMetadata& at) {
  return at.targets_total() == 0 ? "-" : absl::StrCat(at.targets_done(), "/", at.targets_total());
}

std::string ShowOperation(const Operation& operation) {
  const LowerModelMetadata at = client::LoweringProgress(operation);
  Table table({"FIELD", "VALUE"});
  table.Add({"name", operation.name()});
  table.Add({"state", StateOf(operation)});
  if (at.queue_position() > 0) table.Add({"queue position", absl::StrCat(at.queue_position())});
  table.Add({"targets done", Targets(at)});
  table.Add({"model", absl::StrCat(at.model().hash(), "/", at.model().size_bytes())});
  table.Add({"try", absl::StrCat(at.attempt())});
  table.Add({"from the cache", at.cached() ? "yes" : "no"});
  table.Add({"cancel requested", at.cancel_requested() ? "yes" : "no"});
  table.Add({"created", FormatTime(at.create_time())});
  table.Add({"started", FormatTime(at.start_time())});
  table.Add({"ended", FormatTime(at.end_time())});
  const absl::StatusOr<lowerd::v1::LowerModelResponse> result = client::LoweringResult(operation);
  if (operation.has_error()) table.Add({"error", std::string(result.status().message())});
  if (operation.has_response() && result.ok()) {
    for (const lowerd::v1::Artifact& artifact : result->manifest().artifacts()) {
      table.Add({artifact.file_name(),
                 absl::StrCat(artifact.digest().hash(), "/", artifact.digest().size_bytes())});
    }
    table.Add({"manifest.json", absl::StrCat(result->manifest_digest().hash(), "/",
                                             result->manifest_digest().size_bytes())});
  }
  return table.ToString();
}

absl::Status PrintOperation(Session& session, const Operation& operation) {
  session.progress.Clear();
  return session.json ? PrintJson(operation) : Print(ShowOperation(operation));
}

// The terms of ListOperations.filter.
std::string Filter(const ListFlags& flags, const std::string& state) {
  std::vector<std::string> terms;
  if (!state.empty()) terms.push_back(absl::StrCat("state = ", state));
  if (flags.done) terms.push_back("done = true");
  if (flags.running) terms.push_back("done = false");
  if (flags.failed) terms.push_back("error = true");
  return absl::StrJoin(terms, " AND ");
}

// Appends at most flags.limit operations of one state (any if empty) to `all`.
absl::Status ListState(Session& session, const ListFlags& flags, const std::string& state,
                       google::longrunning::ListOperationsResponse& all) {
  google::longrunning::ListOperationsRequest request;
  request.set_name("operations");
  request.set_filter(Filter(flags, state));
  do {
    request.set_page_size(std::min(flags.limit - all.operations_size(), kMaxPage));
    if (request.page_size() <= 0) return absl::OkStatus();
    LOWERD_ASSIGN_OR_RETURN(const auto page, session.client.ListOperations(request));
    all.mutable_operations()->MergeFrom(page.operations());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::Status List(Session& session, const ListFlags& flags) {
  google::longrunning::ListOperationsResponse all;
  if (flags.states.empty()) LOWERD_RETURN_IF_ERROR(ListState(session, flags, "", all));
  for (const std::string& state : flags.states) {
    LOWERD_RETURN_IF_ERROR(ListState(session, flags, state, all));
  }
  if (session.json) return PrintJson(all);
  Table table({"NAME", "STATE", "TARGETS", "CREATED", "MODEL"});
  for (const Operation& operation : all.operations()) {
    const LowerModelMetadata at = client::LoweringProgress(operation);
    table.Add({operation.name(), StateOf(operation), Targets(at), FormatTime(at.create_time()),
               at.model().hash().substr(0, 12)});
  }
  return Print(table.ToString());
}

// Scripts that parse what comes out find something.
absl::Status Acknowledge(Session& session, const absl::Status& status) {
  if (!status.ok() || !session.json) return status;
  return Print("{}\n");
}

absl::Status Get(Session& session, const std::string& name) {
  LOWERD_ASSIGN_OR_RETURN(const Operation operation, session.client.GetOperation(name));
  return PrintOperation(session, operation);
}

// Until the end; fails as the operation did. An interrupt ends only the watching.
absl::Status Watch(Session& session, const std::string& name) {
  LOWERD_ASSIGN_OR_RETURN(
      const Operation operation,
      session.client.Watch(name, [&](const Operation& now) { session.progress.Show(now); }));
  LOWERD_RETURN_IF_ERROR(PrintOperation(session, operation));
  return client::OperationError(operation);
}

absl::Status Wait(Session& session, const std::string& name, const std::string& timeout) {
  if (timeout.empty()) return Watch(session, name);
  LOWERD_ASSIGN_OR_RETURN(const absl::Duration duration, ParseDurationFlag("--timeout", timeout));
  LOWERD_ASSIGN_OR_RETURN(const Operation operation, session.client.WaitOperation(name, duration));
  LOWERD_RETURN_IF_ERROR(PrintOperation(session, operation));
  if (!operation.done()) {
    return MakeError(Reason::kDeadlineExceeded,
                     absl::StrCat(name, " is not done after ", absl::FormatDuration(duration)));
  }
  return client::OperationError(operation);
}

}  // namespace

void AddOperationCommands(CLI::App& app, CommandSet& commands) {
  CLI::App* ops =
      AddCommand(app, "ops", "List, watch and cancel lowerings", "lowerctl ops list --running");
  ops->require_subcommand(1);

  auto flags = std::make_shared<ListFlags>();
  CLI::App* list =
      AddCommand(*ops, "list", "Newest first", "lowerctl ops list --state QUEUED --state LOWERING");
  list->add_option("--state", flags->states, "Only in this state; repeatable")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"QUEUED", "LOADING", "LOWERING", "SERIALIZING", "VERIFYING", "DONE"}))
      ->type_name("STATE");
  CLI::Option* done = list->add_flag("--done", flags->done, "Only finished ones");
  list->add_flag("--running", flags->running, "Only unfinished ones")->excludes(done);
  list->add_flag("--failed", flags->failed, "Only failed ones");
  list->add_option("--limit", flags->limit, "At most so many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  commands.Add(list, [flags](Session& session) { return List(session, *flags); });

  const auto add = [&](const std::string& verb, const std::string& help, const std::string& example,
                       absl::Status (*run)(Session&, const std::string&)) {
    auto name = std::make_shared<std::string>();
    CLI::App* command = AddCommand(*ops, verb, help, example);
    command->add_option("NAME", *name, "operations/{id}, or the id alone")->required();
    commands.Add(command, [name, run](Session& session) { return run(session, FullName(*name)); });
  };
  add("get", "Show one", "lowerctl ops get operations/1234", Get);
  add("watch", "Show its progress until it ends; fails as it fails",
      "lowerctl ops watch operations/1234", Watch);
  add("cancel", "Ask for its end", "lowerctl ops cancel operations/1234",
      [](Session& session, const std::string& name) {
        return Acknowledge(session, session.client.CancelOperation(name));
      });
  add("delete", "Forget a finished one", "lowerctl ops delete operations/1234",
      [](Session& session, const std::string& name) {
        return Acknowledge(session, session.client.DeleteOperation(name));
      });

  auto name = std::make_shared<std::string>();
  auto timeout = std::make_shared<std::string>();
  CLI::App* wait = AddCommand(*ops, "wait", "Return when it is done; fails as it fails",
                              "lowerctl ops wait operations/1234 --timeout 5m");
  wait->add_option("NAME", *name, "operations/{id}, or the id alone")->required();
  wait->add_option("--timeout", *timeout, "Fail with DEADLINE_EXCEEDED after this time")
      ->type_name("DURATION");
  commands.Add(
      wait, [name, timeout](Session& session) { return Wait(session, FullName(*name), *timeout); });
}

}  // namespace lowerd::cli
