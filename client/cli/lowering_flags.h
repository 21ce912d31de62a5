#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <CLI/App.hpp>

#include "client/local_file.h"
#include "lowerd/v1/lowering.pb.h"

namespace lowerd::cli {

// The flags that say what to lower; shared by "lower" and "plan". Must outlive the App they are
// added to.
struct LoweringFlags {
  void AddTo(CLI::App& app);

  std::string model;
  std::vector<std::string> targets;
  std::vector<std::string> target_globs;
  std::vector<std::string> target_types;
  std::string backend = "reference";
  std::vector<std::string> methods;
  std::string spec;
  std::string inputs;
  std::vector<std::string> formats = {"pt"};
  bool debug_info = false;
  bool no_cache = false;
  std::string timeout;
  bool require_full = false;
  std::vector<std::string> extra_files;
  int priority = 0;
  std::string request_id;
};

// A request and the files it names by digest.
struct LoweringInput {
  lowerd::v1::LowerModelRequest request;
  // The model and the others; each path once. Addresses stay valid.
  std::map<std::string, client::LocalFile> files;

  std::vector<const client::LocalFile*> Uploads() const;
};

// Reads and hashes all files. Errors are UsageErrors that name the flag or the file.
absl::StatusOr<LoweringInput> MakeLoweringInput(const LoweringFlags& flags,
                                                absl::string_view instance_name,
                                                const client::ByteProgress& hashing);

// What artifacts of `model` are called: its file name without folder and last extension, at most
// 200 bytes.
std::string ArtifactStem(const std::string& model);

// "60s", "1.5m", or a number of seconds; must be positive.
absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view flag, const std::string& text);

}  // namespace lowerd::cli
