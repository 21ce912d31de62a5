#include "client/cli/command.h"

#include "absl/strings/str_cat.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace lowerd::cli {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& example) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer(absl::StrCat("Example:\n  ", example));
  // Global flags may also stand behind the command.
  command->fallthrough();
  return command;
}

}  // namespace lowerd::cli
