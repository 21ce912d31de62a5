#include "server/lowering_request.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

#include "src/base/error.h"

namespace lowerd::server {
namespace {

constexpr int kMaxTargets = 100'000;
constexpr int kMaxRequestId = 128;
constexpr int kMaxStem = 200;
constexpr int kMaxPriority = 100;
constexpr int kMaxValueDepth = 64;
constexpr char kDefaultBackend[] = "reference";

// Collects the blobs that a request names.
class Inputs {
 public:
  absl::Status Add(const build::bazel::remote::execution::v2::Digest& digest,
                   const std::string& field) {
    LOWERD_ASSIGN_OR_RETURN(Digest parsed, ParseDigest(digest, field));
    if (seen_.insert(parsed).second) digests_.push_back(std::move(parsed));
    return absl::OkStatus();
  }
  std::vector<Digest> Take() { return std::move(digests_); }

 private:
  std::vector<Digest> digests_;
  absl::flat_hash_set<Digest> seen_;
};

absl::Status CheckValue(const v1::Value& value, const std::string& field, int depth,
                        Inputs& inputs) {
  if (depth > kMaxValueDepth) {
    return FieldError(field, absl::StrCat("is nested more than ", kMaxValueDepth, " deep"));
  }
  switch (value.kind_case()) {
    case v1::Value::KIND_NOT_SET:
      return FieldError(field, "has no kind");
    case v1::Value::kTensor:
      return inputs.Add(value.tensor(), field);
    case v1::Value::kList:
    case v1::Value::kTuple: {
      const bool list = value.kind_case() == v1::Value::kList;
      for (const v1::Value& item : (list ? value.list() : value.tuple()).values()) {
        LOWERD_RETURN_IF_ERROR(CheckValue(item, field, depth + 1, inputs));
      }
      return absl::OkStatus();
    }
    case v1::Value::kDict:
      for (const auto& entry : value.dict().entries()) {
        LOWERD_RETURN_IF_ERROR(CheckValue(entry.key(), field, depth + 1, inputs));
        LOWERD_RETURN_IF_ERROR(CheckValue(entry.value(), field, depth + 1, inputs));
      }
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

std::string DeterministicBytes(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

absl::StatusOr<v1::Target> CanonicalTarget(const v1::Target& target, const std::string& field,
                                           const std::set<std::string, std::less<>>& backends,
                                           Inputs& inputs) {
  v1::Target out = target;
  if (out.selector_case() == v1::Target::SELECTOR_NOT_SET ||
      (out.has_path() && out.path() == ".")) {
    out.set_path("");
  }
  if (out.has_path_glob() && out.path_glob().empty()) {
    return FieldError(absl::StrCat(field, ".path_glob"), "is empty");
  }
  if (out.has_original_type() && out.original_type().empty()) {
    return FieldError(absl::StrCat(field, ".original_type"), "is empty");
  }
  if (out.backend().empty()) out.set_backend(kDefaultBackend);
  if (backends.count(out.backend()) == 0) {
    return MakeError(
        Reason::kBackendNotFound,
        absl::StrCat(field, ": there is no backend \"", out.backend(), "\"; this server has ",
                     absl::StrJoin(backends, ", "), " (load others with lowerd --backend-lib)"),
        {{"backend", out.backend()}});
  }
  if (out.methods().empty()) out.add_methods()->set_name("forward");
  std::set<std::string> names;
  for (int i = 0; i < out.methods_size(); ++i) {
    v1::Method& method = *out.mutable_methods(i);
    const std::string method_field = absl::StrCat(field, ".methods[", i, "]");
    if (method.name().empty()) return FieldError(method_field, "has no name");
    if (!names.insert(method.name()).second) {
      return FieldError(method_field, absl::StrCat("\"", method.name(), "\" is listed twice"));
    }
    if (!method.has_compile_spec()) method.mutable_compile_spec()->set_string("");
    LOWERD_RETURN_IF_ERROR(
        CheckValue(method.compile_spec(), absl::StrCat(method_field, ".compile_spec"), 0, inputs));
  }
  std::sort(out.mutable_methods()->begin(), out.mutable_methods()->end(),
            [](const v1::Method& a, const v1::Method& b) { return a.name() < b.name(); });
  return out;
}

absl::StatusOr<absl::Duration> ParseTimeout(const v1::LowerModelRequest& request,
                                            const RequestLimits& limits) {
  if (!request.has_timeout()) return limits.default_timeout;
  const absl::Duration timeout =
      absl::Seconds(request.timeout().seconds()) + absl::Nanoseconds(request.timeout().nanos());
  if (timeout <= absl::ZeroDuration()) return FieldError("timeout", "is not positive");
  return std::min(timeout, limits.max_timeout);
}

}  // namespace

absl::StatusOr<Digest> ParseDigest(const build::bazel::remote::execution::v2::Digest& digest,
                                   const std::string& field) {
  auto parsed = Digest::Parse(digest.hash(), digest.size_bytes());
  if (!parsed.ok()) return FieldError(field, parsed.status().message());
  return parsed;
}

build::bazel::remote::execution::v2::Digest DigestToProto(const Digest& digest) {
  build::bazel::remote::execution::v2::Digest out;
  out.set_hash(digest.hex());
  out.set_size_bytes(digest.size_bytes());
  return out;
}

Toolchain MakeToolchain(const v1::Producer& producer, const std::vector<std::string>& backends) {
  return {Digest::Of(DeterministicBytes(producer)).hex(), {backends.begin(), backends.end()}};
}

absl::StatusOr<LoweringRequest> ParseLoweringRequest(const v1::LowerModelRequest& request,
                                                     const Toolchain& toolchain,
                                                     const RequestLimits& limits) {
  LoweringRequest out;
  v1::LowerModelRequest& canonical = out.canonical;
  Inputs inputs;

  if (!request.has_model()) return FieldError("model", "is required");
  LOWERD_RETURN_IF_ERROR(inputs.Add(request.model(), "model"));
  *canonical.mutable_model() = request.model();

  if (request.targets_size() > kMaxTargets) {
    return FieldError("targets", absl::StrCat("has more than ", kMaxTargets, " entries"));
  }
  std::vector<std::pair<std::string, v1::Target>> targets;
  for (int i = 0; i < std::max(1, request.targets_size()); ++i) {
    const v1::Target& target =
        request.targets_size() == 0 ? v1::Target::default_instance() : request.targets(i);
    LOWERD_ASSIGN_OR_RETURN(
        v1::Target clean,
        CanonicalTarget(target, absl::StrCat("targets[", i, "]"), toolchain.backends, inputs));
    std::string key = DeterministicBytes(clean);
    targets.emplace_back(std::move(key), std::move(clean));
  }
  std::sort(targets.begin(), targets.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [key, target] : targets) *canonical.add_targets() = std::move(target);

  std::set<v1::Format> formats;
  for (int i = 0; i < request.formats_size(); ++i) {
    const v1::Format format = request.formats(i);
    if (format == v1::FORMAT_UNSPECIFIED || !v1::Format_IsValid(format)) {
      return FieldError(absl::StrCat("formats[", i, "]"), "is not a format of this server");
    }
    formats.insert(format);
  }
  if (formats.empty()) formats.insert(v1::TORCHSCRIPT);
  for (const v1::Format format : formats) canonical.add_formats(format);

  canonical.set_debug_info(request.debug_info());
  canonical.set_require_full(request.require_full());
  for (const auto& [name, digest] : request.extra_files()) {
    const std::string field = absl::StrCat("extra_files[\"", name, "\"]");
    if (name.empty() || name.front() == '/' || name.find("..") != std::string::npos) {
      return FieldError(field, "is not a relative file name");
    }
    LOWERD_RETURN_IF_ERROR(inputs.Add(digest, field));
    (*canonical.mutable_extra_files())[name] = digest;
  }
  for (int i = 0; i < request.sample_inputs_size(); ++i) {
    v1::SampleInput sample = request.sample_inputs(i);
    if (sample.method().empty()) sample.set_method("forward");
    LOWERD_RETURN_IF_ERROR(
        inputs.Add(sample.inputs(), absl::StrCat("sample_inputs[", i, "].inputs")));
    *canonical.add_sample_inputs() = std::move(sample);
  }

  canonical.set_artifact_stem(request.artifact_stem().empty() ? "model" : request.artifact_stem());
  const std::string& stem = canonical.artifact_stem();
  if (stem.size() > kMaxStem || stem.find_first_of(std::string("/\\\0", 3)) != std::string::npos ||
      stem == "." || stem == "..") {
    return FieldError("artifact_stem", absl::StrCat("is not a file name of at most ", kMaxStem,
                                                    " bytes without slashes"));
  }
  if (request.request_id().size() > kMaxRequestId) {
    return FieldError("request_id", absl::StrCat("is longer than ", kMaxRequestId, " bytes"));
  }
  if (request.priority() < -kMaxPriority || request.priority() > kMaxPriority) {
    return FieldError("priority", absl::StrCat("is not within +-", kMaxPriority));
  }
  LOWERD_ASSIGN_OR_RETURN(out.timeout, ParseTimeout(request, limits));

  // Length first, so that no request can pose as another request with another toolchain.
  const std::string request_bytes = DeterministicBytes(canonical);
  out.action_key =
      Digest::Of(absl::StrCat(request_bytes.size(), ":", request_bytes, toolchain.identity)).hex();
  out.inputs = inputs.Take();
  return out;
}

}  // namespace lowerd::server
