#include "client/cli/lowering_flags.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>

#include "client/cli/compile_spec_json.h"
#include "client/cli/exit_status.h"
#include "src/base/error.h"
#include "src/base/utf8.h"

namespace lowerd::cli {
namespace {

constexpr size_t kMaxStemBytes = 200;
constexpr int64_t kMaxSpecBytes = 16 << 20;

absl::StatusOr<build::bazel::remote::execution::v2::Digest> AddFile(
    const std::string& path, const client::ByteProgress& hashing, LoweringInput& input) {
  auto found = input.files.find(path);
  if (found == input.files.end()) {
    absl::StatusOr<client::LocalFile> file = client::LocalFile::Open(path, hashing);
    if (!file.ok()) return AsUsageError(file.status());
    found = input.files.emplace(path, *std::move(file)).first;
  }
  build::bazel::remote::execution::v2::Digest digest;
  digest.set_hash(found->second.digest().hex());
  digest.set_size_bytes(found->second.digest().size_bytes());
  return digest;
}

absl::StatusOr<CompileSpecs> ReadSpecs(const LoweringFlags& flags,
                                       const std::vector<std::string>& methods,
                                       const client::ByteProgress& hashing, LoweringInput& input) {
  if (flags.spec.empty()) return CompileSpecs();
  const absl::StatusOr<std::string> json = ReadFileToString(flags.spec, kMaxSpecBytes);
  if (!json.ok()) return UsageError(absl::StrCat("--spec: ", json.status().message()));
  // Paths in the file are relative to the file, so that it can be used from anywhere.
  const std::filesystem::path folder = std::filesystem::path(flags.spec).parent_path();
  const TensorResolver resolve = [&](const std::string& path) {
    return AddFile((folder / path).string(), hashing, input);
  };
  absl::StatusOr<CompileSpecs> specs = ParseCompileSpecs(*json, methods, resolve);
  if (!specs.ok()) {
    return UsageError(absl::StrCat("--spec ", flags.spec, ": ", specs.status().message()));
  }
  return specs;
}

lowerd::v1::Format ParseFormat(absl::string_view name) {
  if (name == "ptl") return lowerd::v1::LITE_BYTECODE;
  if (name == "ff") return lowerd::v1::FLATBUFFER;
  return lowerd::v1::TORCHSCRIPT;
}

// "SELECTOR=BACKEND" or "SELECTOR"; selectors have no '=' in them, so the last one divides.
std::pair<std::string, std::string> SplitTarget(const std::string& flag,
                                                const std::string& default_backend) {
  const size_t at = flag.rfind('=');
  if (at == std::string::npos) return {flag, default_backend};
  return {flag.substr(0, at), flag.substr(at + 1)};
}

absl::Status AddTargets(const LoweringFlags& flags, const CompileSpecs& specs,
                        lowerd::v1::LowerModelRequest& request) {
  const auto add = [&](const std::string& flag,
                       void (*select)(const std::string&, lowerd::v1::Target&)) -> absl::Status {
    const auto [selector, backend] = SplitTarget(flag, flags.backend);
    if (backend.empty()) {
      return UsageError(absl::StrCat("--target ", flag, ": no backend after '='"));
    }
    lowerd::v1::Target& target = *request.add_targets();
    select(selector, target);
    target.set_backend(backend);
    for (const std::string& name : flags.methods) target.add_methods()->set_name(name);
    // The default method must be spelled out to be given a compile spec.
    if (flags.methods.empty() && !specs.empty()) target.add_methods()->set_name("forward");
    for (lowerd::v1::Method& method : *target.mutable_methods()) {
      const auto spec = specs.find(method.name());
      if (spec != specs.end()) *method.mutable_compile_spec() = spec->second;
    }
    return absl::OkStatus();
  };
  const auto by_path = [](const std::string& path, lowerd::v1::Target& target) {
    target.set_path(path == "." ? "" : path);
  };
  for (const std::string& flag : flags.targets) LOWERD_RETURN_IF_ERROR(add(flag, by_path));
  for (const std::string& flag : flags.target_globs) {
    LOWERD_RETURN_IF_ERROR(add(flag, [](const std::string& glob, lowerd::v1::Target& target) {
      target.set_path_glob(glob);
    }));
  }
  for (const std::string& flag : flags.target_types) {
    LOWERD_RETURN_IF_ERROR(add(flag, [](const std::string& type, lowerd::v1::Target& target) {
      target.set_original_type(type);
    }));
  }
  if (request.targets().empty()) return add(".", by_path);
  return absl::OkStatus();
}

}  // namespace

void LoweringFlags::AddTo(CLI::App& app) {
  app.add_option("MODEL", model, "TorchScript file")->required();
  // One value for each flag: otherwise a list would swallow MODEL.
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* help) {
    return app.add_option(name, values, help)->allow_extra_args(false);
  };
  list("--target", targets, "Module path, '.' for the root; repeatable; default the root")
      ->type_name("PATH[=BACKEND]");
  list("--target-glob", target_globs, "Every path that matches, as layer*.conv? or **.conv1")
      ->type_name("GLOB[=BACKEND]");
  list("--target-type", target_types, "Every module of this original type")
      ->type_name("TYPE[=BACKEND]");
  app.add_option("--backend", backend, "For targets that name none")->capture_default_str();
  list("--method", methods, "Method to lower in each target; repeatable; default forward")
      ->type_name("NAME");
  app.add_option("--spec", spec,
                 "Compile spec: a value, or an object with one value for each method")
      ->type_name("FILE.json");
  app.add_option("--inputs", inputs, "torch.save of a tuple: outputs on it must equal the model's")
      ->type_name("FILE");
  list("--format", formats, "Artifacts to make: pt, ptl, ff")
      ->delimiter(',')
      ->check(CLI::IsMember({"pt", "ptl", "ff"}))
      ->type_name("pt,ptl,ff");
  app.add_flag("--debug-info", debug_info, "Keep what device errors need to show source lines");
  app.add_flag("--no-cache", no_cache, "Lower again even if the result is known");
  app.add_option("--timeout", timeout, "For the job, as 60s or 5m")->type_name("DURATION");
  app.add_flag("--require-full", require_full, "Fail if any operator stays outside of the targets");
  list("--extra-file", extra_files, "Extra file to put into each artifact; repeatable")
      ->type_name("NAME=FILE");
  app.add_option("--priority", priority, "Larger runs earlier")
      ->check(CLI::Range(-100, 100))
      ->capture_default_str();
  app.add_option("--request-id", request_id, "The same id gives the same operation; default random")
      ->type_name("ID");
}

std::vector<const client::LocalFile*> LoweringInput::Uploads() const {
  std::vector<const client::LocalFile*> out;
  for (const auto& [path, file] : files) out.push_back(&file);
  return out;
}

std::string ArtifactStem(const std::string& model) {
  const std::string stem = std::filesystem::path(model).stem().string();
  size_t end = std::min(stem.size(), kMaxStemBytes);
  // Not through the middle of a UTF-8 character.
  while (end < stem.size() && (static_cast<unsigned char>(stem[end]) & 0xc0) == 0x80) --end;
  // The name goes through protobuf and becomes a file name elsewhere, too.
  std::string out;
  for (absl::string_view rest = absl::string_view(stem).substr(0, end); !rest.empty();) {
    const size_t length = Utf8Length(rest);
    if (length == 0 || rest.front() == '\\') {
      out.push_back('_');
    } else {
      absl::StrAppend(&out, rest.substr(0, length));
    }
    rest.remove_prefix(std::max<size_t>(length, 1));
  }
  return out == "." || out == ".." ? "model" : out;
}

absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view flag, const std::string& text) {
  absl::Duration duration;
  double seconds;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return UsageError(absl::StrCat(flag, ": \"", text, "\" is no duration; write it as 60s or 5m"));
  }
  if (duration <= absl::ZeroDuration() || duration > absl::Hours(24 * 365)) {
    return UsageError(absl::StrCat(flag, ": \"", text, "\" must be positive and below a year"));
  }
  return duration;
}

absl::StatusOr<LoweringInput> MakeLoweringInput(const LoweringFlags& flags,
                                                absl::string_view instance_name,
                                                const client::ByteProgress& hashing) {
  LoweringInput input;
  lowerd::v1::LowerModelRequest& request = input.request;
  request.set_instance_name(std::string(instance_name));
  LOWERD_ASSIGN_OR_RETURN(*request.mutable_model(), AddFile(flags.model, hashing, input));
  request.set_artifact_stem(ArtifactStem(flags.model));

  const std::vector<std::string> methods =
      flags.methods.empty() ? std::vector<std::string>{"forward"} : flags.methods;
  LOWERD_ASSIGN_OR_RETURN(const CompileSpecs specs, ReadSpecs(flags, methods, hashing, input));
  LOWERD_RETURN_IF_ERROR(AddTargets(flags, specs, request));

  for (const std::string& name : flags.formats) {
    const lowerd::v1::Format format = ParseFormat(name);
    bool seen = false;
    for (const int other : request.formats()) seen = seen || other == format;
    if (!seen) request.add_formats(format);
  }
  if (!flags.inputs.empty()) {
    LOWERD_ASSIGN_OR_RETURN(*request.add_sample_inputs()->mutable_inputs(),
                            AddFile(flags.inputs, hashing, input));
  }
  for (const std::string& flag : flags.extra_files) {
    const size_t at = flag.find('=');
    if (at == std::string::npos || at == 0) {
      return UsageError(absl::StrCat("--extra-file ", flag, ": write it as NAME=FILE"));
    }
    LOWERD_ASSIGN_OR_RETURN((*request.mutable_extra_files())[flag.substr(0, at)],
                            AddFile(flag.substr(at + 1), hashing, input));
  }
  if (!flags.timeout.empty()) {
    LOWERD_ASSIGN_OR_RETURN(absl::Duration timeout, ParseDurationFlag("--timeout", flags.timeout));
    request.mutable_timeout()->set_seconds(absl::IDivDuration(timeout, absl::Seconds(1), &timeout));
    request.mutable_timeout()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(timeout)));
  }
  request.set_debug_info(flags.debug_info);
  request.set_require_full(flags.require_full);
  request.set_priority(flags.priority);
  request.set_request_id(flags.request_id);
  if (flags.no_cache) request.set_cache_policy(lowerd::v1::BYPASS);
  return input;
}

}  // namespace lowerd::cli
