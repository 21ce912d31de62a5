#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/lowering_flags.h"
#include "client/cli/output.h"
#include "client/cli/text.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

using google::longrunning::Operation;

struct LowerFlags : LoweringFlags {
  std::string out = ".";
  bool detach = false;
};

absl::string_view Extension(lowerd::v1::Format format) {
  switch (format) {
    case lowerd::v1::LITE_BYTECODE:
      return "ptl";
    case lowerd::v1::FLATBUFFER:
      return "ff";
    default:
      return "pt";
  }
}

absl::StatusOr<Digest> ParseDigest(const build::bazel::remote::execution::v2::Digest& proto) {
  return Digest::Parse(proto.hash(), proto.size_bytes());
}

// Uploads and starts. A blob that was evicted between the two is uploaded again, once.
absl::StatusOr<Operation> Start(Session& session, const LoweringInput& input) {
  const auto uploads = input.Uploads();
  LOWERD_RETURN_IF_ERROR(session.client.Upload(uploads, session.progress.Bytes("upload")));
  absl::StatusOr<Operation> operation = session.client.LowerModel(input.request);
  if (!HasReason(operation.status(), Reason::kBlobMissing)) return operation;
  LOWERD_RETURN_IF_ERROR(session.client.Upload(uploads, session.progress.Bytes("upload again")));
  return session.client.LowerModel(input.request);
}

// Waits for the end; when interrupted, cancels the operation on the server too.
absl::StatusOr<Operation> Finish(Session& session, Operation operation) {
  const std::string name = operation.name();
  if (operation.done()) return operation;
  absl::StatusOr<Operation> done =
      session.client.Watch(name, [&](const Operation& now) { session.progress.Show(now); });
  if (done.ok() || !session.client.stopped()) return done;
  const absl::Status cancelled = session.client.CancelOperation(name);
  return MakeError(Reason::kOperationCancelled,
                   cancelled.ok() ? absl::StrCat("interrupted; ", name, " was cancelled")
                                  : absl::StrCat("interrupted; ", name,
                                                 " could not be cancelled: ", cancelled.message()));
}

// Where the files of a lowering go, manifest.json last.
absl::StatusOr<std::vector<client::DownloadItem>> Outputs(
    const lowerd::v1::LowerModelResponse& response, const std::string& stem,
    const std::filesystem::path& folder) {
  std::vector<client::DownloadItem> items;
  for (const lowerd::v1::Artifact& artifact : response.manifest().artifacts()) {
    LOWERD_ASSIGN_OR_RETURN(const Digest digest, ParseDigest(artifact.digest()));
    // Not the server's file name: it must not choose where to write here.
    const std::string name = absl::StrCat(stem, ".lowered.", Extension(artifact.format()));
    items.push_back({digest, (folder / name).string()});
  }
  LOWERD_ASSIGN_OR_RETURN(const Digest digest, ParseDigest(response.manifest_digest()));
  items.push_back({digest, (folder / "manifest.json").string()});
  return items;
}

std::string Summary(const lowerd::v1::Manifest& manifest,
                    const std::vector<client::DownloadItem>& outputs) {
  Table modules({"PATH", "BACKEND", "LOWERED TYPE"});
  for (const lowerd::v1::LoweredModule& module : manifest.lowered_modules()) {
    modules.Add({ShowPath(module.path()), module.backend(), module.lowered_type()});
  }
  Table files({"FILE", "SIZE"});
  for (const client::DownloadItem& item : outputs) {
    files.Add({item.path, FormatBytes(item.digest.size_bytes())});
  }
  return absl::StrCat(modules.ToString(), "\n", files.ToString());
}

absl::Status Lower(Session& session, const LowerFlags& flags) {
  LOWERD_ASSIGN_OR_RETURN(
      const LoweringInput input,
      MakeLoweringInput(flags, session.options.instance_name, session.progress.Bytes("hash")));
  LOWERD_ASSIGN_OR_RETURN(Operation operation, Start(session, input));
  if (flags.detach) {
    session.progress.Clear();
    return session.json ? PrintJson(operation) : Print(absl::StrCat(operation.name(), "\n"));
  }
  LOWERD_ASSIGN_OR_RETURN(operation, Finish(session, std::move(operation)));
  LOWERD_ASSIGN_OR_RETURN(const lowerd::v1::LowerModelResponse response,
                          client::LoweringResult(operation));
  LOWERD_ASSIGN_OR_RETURN(const std::vector<client::DownloadItem> outputs,
                          Outputs(response, input.request.artifact_stem(), flags.out));
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error) {
    return MakeError(Reason::kInternalError,
                     absl::StrCat("cannot make the folder ", flags.out, ": ", error.message()));
  }
  LOWERD_RETURN_IF_ERROR(session.client.Download(outputs, session.progress.Bytes("download")));
  session.progress.Clear();
  return session.json ? PrintJson(response) : Print(Summary(response.manifest(), outputs));
}

std::string OperatorList(
    const google::protobuf::RepeatedPtrField<lowerd::v1::OperatorCount>& operators) {
  return absl::StrJoin(operators, ", ", [](std::string* out, const lowerd::v1::OperatorCount& op) {
    absl::StrAppend(out, Printable(op.name()));
    if (op.count() > 1) absl::StrAppend(out, " x", op.count());
  });
}

std::string ShowPlan(const lowerd::v1::LoweringPlan& plan) {
  std::string out;
  Table modules({"LOWERED PATH", "BACKEND", "METHODS", "PARAMETERS", "LOWERED TYPE"});
  for (const lowerd::v1::PlannedModule& module : plan.modules()) {
    modules.Add({ShowPath(module.path()), module.backend(), absl::StrJoin(module.methods(), ","),
                 FormatBytes(module.parameter_bytes()), module.lowered_type()});
  }
  if (!modules.empty()) absl::StrAppend(&out, modules.ToString());
  for (const lowerd::v1::PlannedModule& module : plan.modules()) {
    if (module.operators().empty()) continue;
    absl::StrAppend(&out, "\n", ShowPath(module.path()),
                    " runs on the backend: ", OperatorList(module.operators()), "\n");
  }
  Table staying({"STAYING PATH", "TYPE", "WHY"});
  for (const lowerd::v1::StayingModule& module : plan.staying_modules()) {
    staying.Add({ShowPath(module.path()), module.type(), module.why()});
  }
  if (!staying.empty()) absl::StrAppend(&out, "\n", staying.ToString());
  absl::StrAppend(
      &out, "\nOperators that stay: ",
      plan.remaining_operators().empty() ? "none" : OperatorList(plan.remaining_operators()), "\n");
  if (!plan.problems().empty()) absl::StrAppend(&out, "\nProblems:\n");
  for (const lowerd::v1::PlanProblem& problem : plan.problems()) {
    absl::StrAppend(&out, "  ", Printable(problem.reason()), "  ", ShowPath(problem.path()), ": ",
                    Printable(problem.message()), "\n");
  }
  return out;
}

absl::Status Plan(Session& session, const LoweringFlags& flags) {
  LOWERD_ASSIGN_OR_RETURN(
      const LoweringInput input,
      MakeLoweringInput(flags, session.options.instance_name, session.progress.Bytes("hash")));
  LOWERD_RETURN_IF_ERROR(session.client.Upload(input.Uploads(), session.progress.Bytes("upload")));
  LOWERD_ASSIGN_OR_RETURN(const lowerd::v1::LoweringPlan plan, session.client.Plan(input.request));
  session.progress.Clear();
  LOWERD_RETURN_IF_ERROR(session.json ? PrintJson(plan) : Print(ShowPlan(plan)));
  if (plan.problems().empty()) return absl::OkStatus();
  const int more = plan.problems_size() - 1;
  return ErrorFromReason(plan.problems(0).reason(),
                         absl::StrCat(plan.problems(0).message(),
                                      more > 0 ? absl::StrCat(" (and ", more, " more)") : ""));
}

}  // namespace

void AddLoweringCommands(CLI::App& app, CommandSet& commands) {
  auto lower = std::make_shared<LowerFlags>();
  CLI::App* command =
      AddCommand(app, "lower", "Lower parts of a model and fetch the artifacts",
                 "lowerctl lower resnet18.pt --target layer1 --target layer2.0=reference \\\n"
                 "    --format pt,ptl --out artifacts");
  lower->AddTo(*command);
  command->add_option("--out", lower->out, "Folder for artifacts and manifest.json; made if absent")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--detach", lower->detach,
                    "Print the operation's name and leave; see lowerctl ops watch");
  commands.Add(command, [lower](Session& session) { return Lower(session, *lower); });

  auto plan = std::make_shared<LoweringFlags>();
  command = AddCommand(app, "plan",
                       "Dry run: names, what stays and why, and everything that would be refused",
                       "lowerctl plan resnet18.pt --target-glob 'layer*.0'");
  plan->AddTo(*command);
  commands.Add(command, [plan](Session& session) { return Plan(session, *plan); });
}

}  // namespace lowerd::cli
