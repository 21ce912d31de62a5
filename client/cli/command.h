#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include <CLI/App.hpp>

#include "client/cli/progress.h"
#include "client/client.h"

namespace lowerd::cli {

// What a command works with. The references outlive the command.
struct Session {
  client::Client& client;
  Progress& progress;
  const client::ClientOptions& options;
  // The result as JSON, and nothing else, on stdout.
  bool json = false;
};

// Runs a parsed command; prints its result on stdout.
using Action = std::function<absl::Status(Session&)>;

// Commands and what they do. Each Add... function adds its commands to `app` and here.
class CommandSet {
 public:
  void Add(const CLI::App* command, Action action) {
    commands_.emplace_back(command, std::move(action));
  }

  // The action of the command that was parsed; nullptr if there is none.
  const Action* Parsed() const {
    for (const auto& [command, action] : commands_) {
      if (command->parsed()) return &action;
    }
    return nullptr;
  }

 private:
  std::vector<std::pair<const CLI::App*, Action>> commands_;
};

// Adds a command with a help text that ends with `example`.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& example);

void AddLoweringCommands(CLI::App& app, CommandSet& commands);   // lower, plan
void AddInspectCommand(CLI::App& app, CommandSet& commands);     // inspect
void AddBlobCommands(CLI::App& app, CommandSet& commands);       // put, get
void AddOperationCommands(CLI::App& app, CommandSet& commands);  // ops ...
void AddNameCommands(CLI::App& app, CommandSet& commands);       // names ...
void AddServerCommands(CLI::App& app, CommandSet& commands);     // backends, health, version

}  // namespace lowerd::cli
