#include "server/model_jobs.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/type_resolver.h"
#include "google/protobuf/util/type_resolver_util.h"

#include "src/base/error.h"

namespace lowerd::server {
namespace {

std::vector<std::string> BackendNames(const internal::FromZygote::Ready& toolchain) {
  std::vector<std::string> names;
  for (const v1::Backend& backend : toolchain.backends()) names.push_back(backend.name());
  return names;
}

jobs::Progress ToProgress(const internal::Progress& progress) {
  jobs::Progress out;
  switch (progress.state()) {
    case v1::LowerModelMetadata::LOWERING:
      out.state = jobs::State::kLowering;
      break;
    case v1::LowerModelMetadata::SERIALIZING:
      out.state = jobs::State::kSerializing;
      break;
    case v1::LowerModelMetadata::VERIFYING:
      out.state = jobs::State::kVerifying;
      break;
    default:
      out.state = jobs::State::kLoading;
  }
  out.targets_done = progress.targets_done();
  out.targets_total = progress.targets_total();
  return out;
}

// The same manifest gives the same bytes: MessageToJsonString would print maps in the order of
// their hashes, which each process seeds anew, so the JSON is made from the sorted wire form.
std::string ToJson(const v1::Manifest& manifest) {
  std::string wire;
  {
    google::protobuf::io::StringOutputStream stream(&wire);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    manifest.SerializeToCodedStream(&coded);
  }
  const std::unique_ptr<google::protobuf::util::TypeResolver> types(
      google::protobuf::util::NewTypeResolverForDescriptorPool(
          "type.googleapis.com", manifest.GetDescriptor()->file()->pool()));
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  std::string json;
  // Cannot fail: the manifest has no Any and its strings are UTF-8 (it came over the wire).
  (void)google::protobuf::util::BinaryToJsonString(
      types.get(), "type.googleapis.com/" + manifest.GetDescriptor()->full_name(), wire, &json,
      options);
  return json;
}

// Claims names for a child, or with an empty `operation` tells which it would get.
absl::StatusOr<internal::NamesGranted> GrantNames(names::TypeNameRegistry& registry,
                                                  const internal::ClaimNames& claims,
                                                  const Digest& model,
                                                  const std::string& operation) {
  std::vector<names::Origin> origins;
  for (const auto& claim : claims.claims()) {
    names::Origin origin;
    if (claim.identity().size() != origin.identity.size()) {
      return MakeError(Reason::kWorkerCrashed,
                       "the worker claimed a name with a malformed identity");
    }
    std::copy(claim.identity().begin(), claim.identity().end(), origin.identity.begin());
    origin.base_name = claim.base_name();
    origin.model = model;
    origin.module_path = claim.module_path();
    origin.backend = claim.backend();
    origin.backend_version = claim.backend_version();
    origin.original_type = claim.original_type();
    origin.compile_spec_sha256 = claim.compile_spec_sha256();
    origin.operation = operation;
    origins.push_back(std::move(origin));
  }
  LOWERD_ASSIGN_OR_RETURN(const std::vector<uint32_t> mangles,
                          operation.empty() ? registry.Preview(origins) : registry.Claim(origins));
  internal::NamesGranted granted;
  for (const uint32_t mangle : mangles) granted.add_mangle(mangle);
  return granted;
}

}  // namespace

struct ModelJobs::OpenFiles {
  // Keeps the blobs while the job runs.
  std::unique_ptr<blob::Pin> pin;
  std::vector<Fd> fds;
  std::vector<pool::WorkerPool::File> files;
};

ModelJobs::ModelJobs(pool::WorkerPool& pool, blob::BlobStore& blobs,
                     names::TypeNameRegistry& registry, RequestLimits limits)
    : pool_(pool),
      blobs_(blobs),
      registry_(registry),
      limits_(limits),
      toolchain_(MakeToolchain(pool.toolchain().producer(), BackendNames(pool.toolchain()))) {}

absl::StatusOr<ModelJobs::OpenFiles> ModelJobs::OpenInputs(const std::vector<Digest>& inputs) {
  OpenFiles out;
  LOWERD_ASSIGN_OR_RETURN(out.pin, blobs_.PinAll(inputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    LOWERD_ASSIGN_OR_RETURN(Fd fd, blobs_.Open(inputs[i]));
    out.files.push_back({i == 0 ? internal::Job::File::MODEL : internal::Job::File::BLOB,
                         inputs[i].hex(), fd.get()});
    out.fds.push_back(std::move(fd));
  }
  return out;
}

absl::Status ModelJobs::Explain(const absl::Status& failure, const std::vector<Digest>& inputs) {
  if (!HasReason(failure, Reason::kModelCorrupt) && !HasReason(failure, Reason::kWorkerCrashed) &&
      !HasReason(failure, Reason::kModelNotTorchscript)) {
    return failure;
  }
  for (const Digest& input : inputs) LOWERD_RETURN_IF_ERROR(blobs_.Verify(input));
  return failure;
}

absl::Status ModelJobs::AddOutput(const Digest& digest, jobs::JobResult& result) {
  auto pin = blobs_.PinAll({digest});
  if (HasReason(pin.status(), Reason::kBlobMissing)) {
    return MakeError(Reason::kStoreFull,
                     "an artifact was evicted at once; the server's blob limit is too small");
  }
  if (!pin.ok()) return pin.status();
  result.pins.push_back(*std::move(pin));
  result.outputs.push_back(digest);
  return absl::OkStatus();
}

absl::StatusOr<jobs::JobResult> ModelJobs::Run(
    const jobs::Operation& operation, const Cancellation& cancellation,
    const std::function<void(const jobs::Progress&)>& progress) {
  v1::LowerModelRequest stored;
  if (!stored.ParseFromString(operation.request)) {
    return MakeError(Reason::kInternalError,
                     absl::StrCat(operation.name, " holds a request that cannot be parsed"));
  }
  LOWERD_ASSIGN_OR_RETURN(const LoweringRequest request,
                          ParseLoweringRequest(stored, toolchain_, limits_));
  LOWERD_ASSIGN_OR_RETURN(OpenFiles open, OpenInputs(request.inputs));
  const size_t first_artifact = open.files.size();
  for (const int format : request.canonical.formats()) {
    LOWERD_ASSIGN_OR_RETURN(Fd fd, blobs_.CreateTemporary());
    open.files.push_back({internal::Job::File::ARTIFACT,
                          v1::Format_Name(static_cast<v1::Format>(format)), fd.get()});
    open.fds.push_back(std::move(fd));
  }

  pool::WorkerPool::Job job;
  job.kind = internal::Job::LOWER;
  job.request = request.canonical;
  job.files = open.files;
  job.deadline = absl::Now() + request.timeout;
  job.cancellation = &cancellation;
  job.on_progress = [&progress](const internal::Progress& p) { progress(ToProgress(p)); };
  job.claim_names = [&registry = registry_, model = request.inputs.front(),
                     name = operation.name](const internal::ClaimNames& claims) {
    return GrantNames(registry, claims, model, name);
  };
  auto run = pool_.Run(job);
  if (!run.ok()) return Explain(run.status(), request.inputs);
  internal::Done done = *std::move(run);
  if (!done.has_manifest()) {
    return MakeError(Reason::kWorkerCrashed, "the worker ended a lowering without a manifest");
  }

  // The child is gone: nobody but us can write to the artifacts now.
  v1::LowerModelResponse response;
  v1::Manifest& manifest = *response.mutable_manifest();
  manifest = std::move(*done.mutable_manifest());
  jobs::JobResult result;
  result.cacheable = request.action_key == operation.action_key;
  std::map<std::string, Digest> stored_artifacts;
  for (size_t i = first_artifact; i < open.files.size(); ++i) {
    LOWERD_ASSIGN_OR_RETURN(const Digest digest, blobs_.Adopt(std::move(open.fds[i])));
    stored_artifacts.emplace(open.files[i].key, digest);
    LOWERD_RETURN_IF_ERROR(AddOutput(digest, result));
  }
  for (v1::Artifact& artifact : *manifest.mutable_artifacts()) {
    const auto found = stored_artifacts.find(v1::Format_Name(artifact.format()));
    if (found == stored_artifacts.end()) {
      return MakeError(Reason::kWorkerCrashed, "the worker's manifest lists an unknown artifact");
    }
    *artifact.mutable_digest() = DigestToProto(found->second);
  }
  LOWERD_ASSIGN_OR_RETURN(const Digest manifest_digest, blob::PutBytes(blobs_, ToJson(manifest)));
  *response.mutable_manifest_digest() = DigestToProto(manifest_digest);
  LOWERD_RETURN_IF_ERROR(AddOutput(manifest_digest, result));
  result.result = response.SerializeAsString();
  return result;
}

absl::StatusOr<v1::LoweringPlan> ModelJobs::Plan(const LoweringRequest& request,
                                                 const Cancellation* cancellation) {
  LOWERD_ASSIGN_OR_RETURN(const OpenFiles open, OpenInputs(request.inputs));
  pool::WorkerPool::Job job;
  job.kind = internal::Job::PLAN;
  job.request = request.canonical;
  job.files = open.files;
  job.deadline = absl::Now() + request.timeout;
  job.cancellation = cancellation;
  job.claim_names = [&registry = registry_,
                     model = request.inputs.front()](const internal::ClaimNames& claims) {
    return GrantNames(registry, claims, model, "");
  };
  LOWERD_ASSIGN_OR_RETURN(internal::Done done, pool_.Run(job));
  if (!done.has_plan()) {
    return MakeError(Reason::kWorkerCrashed, "the worker ended a dry run without a plan");
  }
  return std::move(*done.mutable_plan());
}

absl::StatusOr<v1::ModelDescription> ModelJobs::Inspect(const Digest& model,
                                                        const Cancellation* cancellation) {
  LOWERD_ASSIGN_OR_RETURN(const OpenFiles open, OpenInputs({model}));
  pool::WorkerPool::Job job;
  job.kind = internal::Job::INSPECT;
  *job.request.mutable_model() = DigestToProto(model);
  job.files = open.files;
  job.deadline = absl::Now() + limits_.default_timeout;
  job.cancellation = cancellation;
  LOWERD_ASSIGN_OR_RETURN(internal::Done done, pool_.Run(job));
  if (!done.has_description()) {
    return MakeError(Reason::kWorkerCrashed,
                     "the worker ended an inspection without a description");
  }
  return std::move(*done.mutable_description());
}

}  // namespace lowerd::server
