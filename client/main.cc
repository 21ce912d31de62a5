// lowerctl: lowers models through a lowerd. See docs/cli.md.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/interrupt.h"
#include "client/cli/lowering_flags.h"
#include "client/cli/output.h"
#include "src/base/error.h"
#include "src/base/version.h"

namespace lowerd::cli {
namespace {

struct GlobalFlags {
  client::ClientOptions client;
  std::string call_timeout = "60s";
  bool json = false;
  bool verbose = false;
};

void AddGlobalFlags(CLI::App& app, GlobalFlags& flags) {
  app.set_version_flag("--version", absl::StrCat("lowerctl ", kVersion));
  app.set_config("--config", "", "Read flags from this file (TOML or INI)");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option("--server", flags.client.server, "Address of lowerd")
      ->envname("LOWERD_SERVER")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_flag("--json", flags.json, "Print the result as JSON and nothing else");
  app.add_flag("-v,--verbose", flags.verbose, "Stages as lines on stderr also without a terminal");
  app.add_option("--instance", flags.client.instance_name,
                 "Remote Execution API instance of blobs");
  app.add_option("--tls-ca", flags.client.tls_ca_file,
                 "CA certificates of the server; turns on TLS")
      ->type_name("FILE");
  app.add_option("--tls-cert", flags.client.tls_cert_file, "Own certificate, for mutual TLS")
      ->type_name("FILE");
  app.add_option("--tls-key", flags.client.tls_key_file, "Key of the own certificate")
      ->type_name("FILE");
  app.add_option("--token-file", flags.client.token_file, "Bearer token; sent over TLS only")
      ->type_name("FILE");
  app.add_flag("--insecure", flags.client.insecure,
               "Plaintext also to a server that is not on this host");
  app.add_option("--call-timeout", flags.call_timeout, "For one call; transfers get more by size")
      ->type_name("DURATION")
      ->capture_default_str();
  app.add_option("--retries", flags.client.retries, "Further tries while the server is unavailable")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--parallel", flags.client.parallel_transfers, "Blobs transferred at once")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

ProgressStyle StyleFor(const GlobalFlags& flags) {
  if (flags.verbose) return ProgressStyle::kLines;
  return !flags.json && isatty(STDERR_FILENO) != 0 ? ProgressStyle::kBar : ProgressStyle::kNone;
}

absl::Status Run(const Action& action, GlobalFlags& flags) {
  LOWERD_ASSIGN_OR_RETURN(flags.client.call_timeout,
                          ParseDurationFlag("--call-timeout", flags.call_timeout));
  // The mask that Interrupt sets must come before gRPC's threads, and its call needs the client.
  std::unique_ptr<client::Client> client;
  absl::Mutex mutex;
  bool interrupted = false;
  Interrupt interrupt([&] {
    absl::MutexLock lock(&mutex);
    interrupted = true;
    if (client != nullptr) client->Stop();
  });
  absl::StatusOr<std::unique_ptr<client::Client>> created = client::Client::Create(flags.client);
  if (!created.ok()) return AsUsageError(created.status());
  {
    absl::MutexLock lock(&mutex);
    client = *std::move(created);
    if (interrupted) client->Stop();
  }
  Progress progress(StyleFor(flags));
  Session session{*client, progress, flags.client, flags.json};
  return action(session);
}

int Report(const absl::Status& status) {
  if (!status.ok()) absl::FPrintF(stderr, "%s\n", ErrorLine(status));
  return ExitCode(status);
}

// What is wrong with the command line. CLI11 asks for a command before it tells of a word that is
// none.
std::string UsageFault(const CLI::App& app, const CLI::Error& error) {
  const std::vector<std::string> unknown = app.remaining();
  if (app.get_subcommands().empty() && !unknown.empty()) {
    return absl::StrCat("there is no command or flag \"", unknown.front(), "\"");
  }
  return error.what();
}

int Main(int argc, char** argv) {
  // A reader that goes away is an error of writing, not a death without a word.
  std::signal(SIGPIPE, SIG_IGN);
  // gRPC would log failed handshakes beside the one line that tells of them; a set variable wins.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  GlobalFlags flags;
  CommandSet commands;
  CLI::App app("Lowers PyTorch models for devices through a lowerd server.", "lowerctl");
  app.footer(
      "Examples:\n"
      "  lowerctl lower resnet18.pt --target layer1 --format pt,ptl --out artifacts\n"
      "  lowerctl inspect resnet18.pt\n"
      "Each command has its own: lowerctl COMMAND --help");
  app.require_subcommand(1);
  AddGlobalFlags(app, flags);
  AddLoweringCommands(app, commands);
  AddInspectCommand(app, commands);
  AddServerCommands(app, commands);
  AddBlobCommands(app, commands);
  AddOperationCommands(app, commands);
  AddNameCommands(app, commands);
  // CLI11 reports by exceptions; they end here.
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::Error& error) {
    return Report(UsageError(absl::StrCat(UsageFault(app, error), "; see lowerctl --help")));
  }
  return Report(Run(*commands.Parsed(), flags));
}

}  // namespace
}  // namespace lowerd::cli

int main(int argc, char** argv) { return lowerd::cli::Main(argc, argv); }
