#include "src/lowering/artifact_verifier.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "src/base/error.h"
#include "src/base/type_name.h"
#include "src/lowering/flatbuffer_artifact.h"
#include "src/lowering/model_archive.h"
#include "src/lowering/pickle_machine.h"

namespace lowerd::lowering {
namespace {

using PickleKind = PickleValues::Kind;

constexpr absl::string_view kCustomClassPrefix = "__torch__.torch.classes.";

absl::Status Failed(const v1::Format format, absl::string_view what) {
  return MakeError(Reason::kVerificationFailed, absl::StrCat("the ", v1::Format_Name(format),
                                                             " artifact was discarded: ", what));
}

v1::Type::Kind KindOf(const std::string& name, absl::string_view base) {
  const v1::Type::Kind by_name = KindOfTypeName(name);
  if (by_name != v1::Type::MODULE || base == "Module") return by_name;
  if (base == "NamedTuple") return v1::Type::NAMED_TUPLE;
  if (base == "Interface" || base == "ModuleInterface") return v1::Type::INTERFACE;
  if (base == "Enum") return v1::Type::ENUM;
  return v1::Type::CLASS;
}

// "class Name(Base):" lines of one code file.
absl::Status ReadClasses(const std::string& module, absl::string_view code, v1::Format format,
                         std::map<std::string, v1::Type::Kind>& types) {
  for (absl::string_view line : absl::StrSplit(code, '\n')) {
    if (!absl::ConsumePrefix(&line, "class ")) continue;
    const size_t end = line.find_first_of("(:");
    if (end == absl::string_view::npos) continue;
    absl::string_view base;
    if (line[end] == '(') {
      const size_t close = line.find(')', end);
      if (close == absl::string_view::npos) continue;
      base = line.substr(end + 1, close - end - 1);
    }
    const std::string name = absl::StrCat(module, ".", line.substr(0, end));
    if (!types.emplace(name, KindOf(name, base)).second) {
      return Failed(format, absl::StrCat("class ", name, " is defined twice"));
    }
  }
  return absl::OkStatus();
}

void AddGlobals(const PickleValues& values, std::set<std::string>& names) {
  for (const PickleValues::Value& value : values.values()) {
    if (value.kind != PickleKind::kGlobal) continue;
    const std::string name = PickleValues::GlobalName(value);
    if (absl::StartsWith(name, "__torch__.") || absl::StartsWith(name, "torch.jit.Lowered")) {
      names.insert(name);
    }
  }
}

// (version, (function name, ...), ...)
void ReadBytecode(const PickleValues& values, ArtifactContents& out) {
  const PickleValues::Value& root = values.root();
  for (size_t i = 0; i < root.items.size(); ++i) {
    const PickleValues::Value& item = values.at(root.items[i]);
    if (i == 0 && item.kind == PickleKind::kInt) out.bytecode_version = item.number;
    if (item.kind != PickleKind::kTuple || item.items.empty()) continue;
    const PickleValues::Value& name = values.at(item.items[0]);
    if (name.kind == PickleKind::kString) out.functions.emplace_back(name.text);
  }
}

absl::StatusOr<ArtifactContents> ReadArchive(v1::Format format, absl::string_view bytes) {
  ModelArchive::Limits limits;
  limits.max_format_version = std::numeric_limits<int64_t>::max();
  auto archive = ModelArchive::Open(bytes, limits);
  if (!archive.ok()) return Failed(format, archive.status().message());
  ArtifactContents out;
  out.format = format;
  out.file_format_version = archive->format_version();
  std::set<std::string> referenced;
  for (const ModelArchive::Record& record : archive->records()) {
    absl::string_view name = record.name;
    if (absl::ConsumePrefix(&name, "extra/")) {
      out.extra_files.emplace_back(name);
      continue;
    }
    const bool code = absl::ConsumePrefix(&name, "code/") && absl::ConsumeSuffix(&name, ".py");
    const bool bytecode = record.name == "bytecode.pkl";
    if (!code && !bytecode && record.name != "data.pkl") continue;
    const auto content = archive->Read(record);
    if (!content.ok()) return Failed(format, content.status().message());
    if (code) {
      LOWERD_RETURN_IF_ERROR(
          ReadClasses(absl::StrReplaceAll(name, {{"/", "."}}), *content, format, out.types));
      continue;
    }
    const auto values = PickleValues::Parse(*content, record.name);
    if (!values.ok()) return Failed(format, values.status().message());
    AddGlobals(*values, referenced);
    if (bytecode) ReadBytecode(*values, out);
  }
  if (format == v1::LITE_BYTECODE && archive->Find("bytecode.pkl") == nullptr) {
    return Failed(format, "it has no bytecode");
  }
  out.referenced_types.assign(referenced.begin(), referenced.end());
  return out;
}

std::set<std::string> LoweredTypes(const ArtifactContents& artifact) {
  std::set<std::string> out;
  for (const auto& [name, kind] : artifact.types) {
    if (IsLoweredModuleName(name)) out.insert(name);
  }
  return out;
}

absl::Status CheckNames(const ArtifactContents& artifact, const std::set<std::string>& expected) {
  const std::set<std::string> found = LoweredTypes(artifact);
  if (found != expected) {
    return Failed(artifact.format,
                  absl::StrCat("its lowered types are ", absl::StrJoin(found, ", "), "; expected ",
                               absl::StrJoin(expected, ", ")));
  }
  for (const auto& [name, kind] : artifact.types) {
    for (const int64_t number : MangleNumbers(name)) {
      if (number >= kMangleRange) {
        return Failed(artifact.format, absl::StrCat("PyTorch cannot parse the mangle of ", name));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFunctions(const ArtifactContents& artifact,
                            const std::set<std::string>& expected) {
  std::map<std::string, int> counts;
  for (const std::string& function : artifact.functions) {
    if (++counts[function] > 1) {
      return Failed(artifact.format, absl::StrCat("function ", function, " is written twice"));
    }
  }
  for (const std::string& type : expected) {
    if (counts.count(type + ".__setstate__") == 0) {
      return Failed(artifact.format, absl::StrCat(type, " has no __setstate__"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReferences(const ArtifactContents& artifact) {
  for (const std::string& name : artifact.referenced_types) {
    if (artifact.types.count(name) == 0 && !absl::StartsWith(name, kCustomClassPrefix)) {
      return Failed(artifact.format,
                    absl::StrCat("it refers to ", name, ", which it does not define"));
    }
  }
  return absl::OkStatus();
}

// The archives of one lowering hold the same classes; a flatbuffer holds those that its data uses.
absl::Status CheckFormatsAgree(const std::vector<ArtifactContents>& artifacts) {
  const auto archive = std::find_if(artifacts.begin(), artifacts.end(), [](const auto& artifact) {
    return artifact.format != v1::FLATBUFFER;
  });
  if (archive == artifacts.end()) return absl::OkStatus();
  for (const ArtifactContents& artifact : artifacts) {
    for (const auto& [name, kind] : artifact.types) {
      if (archive->types.count(name) == 0 && kind != v1::Type::CUSTOM_CLASS) {
        return Failed(artifact.format,
                      absl::StrCat("it defines ", name, ", which the ",
                                   v1::Format_Name(archive->format), " artifact does not"));
      }
    }
    if (artifact.format != v1::FLATBUFFER && artifact.types.size() != archive->types.size()) {
      return Failed(artifact.format, absl::StrCat("it defines ", artifact.types.size(),
                                                  " types, the ", v1::Format_Name(archive->format),
                                                  " artifact ", archive->types.size()));
    }
  }
  return absl::OkStatus();
}

void AddVerification(v1::Manifest& manifest, const std::string& check, const std::string& result) {
  v1::Verification* verification = manifest.add_verifications();
  verification->set_check(check);
  verification->set_result(result);
}

}  // namespace

v1::Type::Kind KindOfTypeName(absl::string_view name) {
  if (IsLoweredModuleName(name)) return v1::Type::LOWERED_MODULE;
  if (IsLoweredWrapperName(name)) return v1::Type::LOWERED_WRAPPER;
  if (absl::StartsWith(name, kCustomClassPrefix)) return v1::Type::CUSTOM_CLASS;
  return v1::Type::MODULE;
}

absl::StatusOr<ArtifactContents> ReadArtifact(v1::Format format, absl::string_view bytes) {
  return format == v1::FLATBUFFER ? ReadFlatbuffer(bytes) : ReadArchive(format, bytes);
}

absl::Status VerifyArtifacts(const std::vector<ArtifactContents>& artifacts,
                             const std::vector<std::string>& lowered_before,
                             v1::Manifest& manifest) {
  std::set<std::string> lowered(lowered_before.begin(), lowered_before.end());
  std::set<std::string> wrappers;
  for (const v1::LoweredModule& module : manifest.lowered_modules()) {
    if (!lowered.insert(module.lowered_type()).second) {
      return MakeError(Reason::kVerificationFailed,
                       absl::StrCat("two lowered modules are called ", module.lowered_type()));
    }
    wrappers.insert(module.wrapper_type());
  }

  std::map<std::string, v1::Type> types;
  size_t functions = 0;
  for (const ArtifactContents& artifact : artifacts) {
    LOWERD_RETURN_IF_ERROR(CheckNames(artifact, lowered));
    for (const std::string& wrapper : wrappers) {
      if (artifact.types.count(wrapper) == 0) {
        return Failed(artifact.format, absl::StrCat("it does not define ", wrapper));
      }
    }
    if (artifact.format != v1::TORCHSCRIPT) {
      LOWERD_RETURN_IF_ERROR(CheckFunctions(artifact, lowered));
      functions += artifact.functions.size();
    }
    LOWERD_RETURN_IF_ERROR(CheckReferences(artifact));
    if (artifact.extra_files != artifacts.front().extra_files) {
      return Failed(artifact.format, "its extra files differ from those of the other formats");
    }
    std::map<std::string, v1::Type::Kind> all = artifact.types;
    for (const std::string& name : artifact.referenced_types)
      all.emplace(name, KindOfTypeName(name));
    for (const auto& [name, kind] : all) {
      v1::Type& type = types[name];
      type.set_name(name);
      // A flatbuffer knows only names; the archives' code knows kinds.
      if (type.kind() == v1::Type::KIND_UNSPECIFIED || artifact.format != v1::FLATBUFFER) {
        type.set_kind(kind);
      }
      type.add_formats(artifact.format);
    }
    v1::Producer& producer = *manifest.mutable_producer();
    producer.set_file_format_version(
        std::max(producer.file_format_version(), artifact.file_format_version));
    producer.set_bytecode_version(std::max(producer.bytecode_version(), artifact.bytecode_version));
    producer.set_minimum_runtime_bytecode_version(producer.bytecode_version());
  }
  LOWERD_RETURN_IF_ERROR(CheckFormatsAgree(artifacts));
  for (auto& [name, type] : types) *manifest.add_types() = std::move(type);
  if (!artifacts.empty()) {
    for (const std::string& file : artifacts.front().extra_files) manifest.add_extra_files(file);
  }
  AddVerification(manifest, "names",
                  absl::StrCat(lowered.size(), " lowered types, each once in each of ",
                               artifacts.size(), " artifacts"));
  if (functions != 0) {
    AddVerification(manifest, "setstate",
                    absl::StrCat("one __setstate__ for each lowered type; ", functions,
                                 " functions, none twice"));
  }
  AddVerification(manifest, "references", "every type that data refers to is defined");
  if (artifacts.size() > 1) {
    AddVerification(manifest, "formats-agree",
                    absl::StrCat(artifacts.size(), " artifacts define the same types"));
  }
  return absl::OkStatus();
}

}  // namespace lowerd::lowering
