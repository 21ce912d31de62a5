#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include "client/channel.h"
#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/output.h"
#include "client/cli/text.h"
#include "src/base/error.h"
#include "src/base/version.h"

namespace lowerd::cli {
namespace {

using grpc::health::v1::HealthCheckResponse;

absl::Status Backends(Session& session) {
  LOWERD_ASSIGN_OR_RETURN(const auto response, session.client.ListBackends());
  if (session.json) return PrintJson(response);
  Table table({"BACKEND", "VERSION", "LIBRARY", "PREPROCESS", "RUNS HERE"});
  for (const lowerd::v1::Backend& backend : response.backends()) {
    table.Add({backend.name(), backend.version(), backend.library().file_name(),
               backend.has_preprocess() ? "yes" : "no", backend.available() ? "yes" : "no"});
  }
  return Print(table.ToString());
}

absl::Status Health(Session& session, const std::string& service) {
  LOWERD_ASSIGN_OR_RETURN(const HealthCheckResponse response, session.client.Health(service));
  LOWERD_RETURN_IF_ERROR(
      session.json
          ? PrintJson(response)
          : Print(absl::StrCat(HealthCheckResponse::ServingStatus_Name(response.status()), "\n")));
  if (response.status() == HealthCheckResponse::SERVING) return absl::OkStatus();
  return MakeError(Reason::kServerUnavailable,
                   absl::StrCat(client::ServerAddress(session.options.server),
                                " is reachable but does not serve; it starts or shuts down"));
}

// The client's version, and the server's toolchain if there is one to ask.
absl::Status Version(Session& session) {
  const auto response = session.client.ListBackends();
  const std::string address = client::ServerAddress(session.options.server);
  if (session.json) {
    nlohmann::ordered_json json = {{"clientVersion", kVersion}};
    std::string producer;
    if (response.ok() &&
        google::protobuf::util::MessageToJsonString(response->producer(), &producer).ok()) {
      json["server"] = address;
      json["producer"] = nlohmann::ordered_json::parse(producer, nullptr, false);
    }
    return Print(absl::StrCat(json.dump(1), "\n"));
  }
  std::string out = absl::StrCat("lowerctl ", kVersion, "\n");
  if (!response.ok()) {
    absl::StrAppend(&out, "server   none at ", address, "\n");
    return Print(out);
  }
  const lowerd::v1::Producer& producer = response->producer();
  absl::StrAppend(&out, "lowerd   ", Printable(producer.lowerd_version()), " at ", address, "\n",
                  "libtorch ", Printable(producer.libtorch_version()), "\n");
  return Print(out);
}

}  // namespace

void AddServerCommands(CLI::App& app, CommandSet& commands) {
  commands.Add(AddCommand(app, "backends", "List the backends the server has", "lowerctl backends"),
               Backends);
  auto service = std::make_shared<std::string>();
  CLI::App* health = AddCommand(app, "health", "Print SERVING, or exit with 4",
                                "lowerctl --server farm:50051 health");
  health->add_option("--service", *service, "One gRPC service; default the server as a whole")
      ->type_name("NAME");
  commands.Add(health, [service](Session& session) { return Health(session, *service); });
  commands.Add(AddCommand(app, "version", "Versions of client and server", "lowerctl version"),
               Version);
}

}  // namespace lowerd::cli
