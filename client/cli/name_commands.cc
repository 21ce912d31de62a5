#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>

#include "client/cli/command.h"
#include "client/cli/output.h"
#include "client/cli/text.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

constexpr int kMaxPage = 1000;

struct ListFlags {
  std::string prefix;
  int limit = 100;
};

absl::Status Resolve(Session& session, const std::string& name) {
  LOWERD_ASSIGN_OR_RETURN(const auto response, session.client.ResolveTypeName(name));
  if (session.json) return PrintJson(response);
  std::string out;
  for (const lowerd::v1::TypeNameOrigin& origin : response.origins()) {
    Table table({"FIELD", "VALUE"});
    table.Add({"lowered type", origin.lowered_type()});
    table.Add({"wrapper type", origin.wrapper_type()});
    table.Add({"module path", ShowPath(origin.module_path())});
    table.Add({"original type", origin.original_type()});
    table.Add({"model", absl::StrCat(origin.model().hash(), "/", origin.model().size_bytes())});
    table.Add({"backend", absl::StrCat(origin.backend(), " ", origin.backend_version())});
    table.Add({"compile spec", origin.compile_spec_sha256()});
    table.Add({"operation", origin.operation()});
    table.Add({"claimed", FormatTime(origin.claim_time())});
    absl::StrAppend(&out, out.empty() ? "" : "\n", table.ToString());
  }
  return Print(out);
}

absl::Status List(Session& session, const ListFlags& flags) {
  lowerd::v1::ListTypeNamesRequest request;
  request.set_prefix(flags.prefix);
  lowerd::v1::ListTypeNamesResponse all;
  do {
    request.set_page_size(std::min(flags.limit - all.origins_size(), kMaxPage));
    if (request.page_size() <= 0) break;
    LOWERD_ASSIGN_OR_RETURN(const auto page, session.client.ListTypeNames(request));
    all.mutable_origins()->MergeFrom(page.origins());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (session.json) return PrintJson(all);
  Table table({"LOWERED TYPE", "MODULE PATH", "MODEL", "CLAIMED"});
  for (const lowerd::v1::TypeNameOrigin& origin : all.origins()) {
    table.Add({origin.lowered_type(), ShowPath(origin.module_path()),
               origin.model().hash().substr(0, 12), FormatTime(origin.claim_time())});
  }
  return Print(table.ToString());
}

}  // namespace

void AddNameCommands(CLI::App& app, CommandSet& commands) {
  CLI::App* names =
      AddCommand(app, "names", "Find out where a lowered type came from", "lowerctl names list");
  names->require_subcommand(1);

  auto name = std::make_shared<std::string>();
  CLI::App* resolve =
      AddCommand(*names, "resolve", "From a name in a device's log to model and module",
                 "lowerctl names resolve "
                 "torch.jit.LoweredModule.reference.net.___torch_mangle_1234.Block.__setstate__");
  resolve->add_option("NAME", *name, "As the log shows it: mangled or not, with or without method")
      ->required();
  commands.Add(resolve, [name](Session& session) { return Resolve(session, *name); });

  auto flags = std::make_shared<ListFlags>();
  CLI::App* list = AddCommand(*names, "list", "In name order",
                              "lowerctl names list --prefix torch.jit.LoweredModule.reference");
  list->add_option("--prefix", flags->prefix, "Only names that begin with this");
  list->add_option("--limit", flags->limit, "At most so many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  commands.Add(list, [flags](Session& session) { return List(session, *flags); });
}

}  // namespace lowerd::cli
