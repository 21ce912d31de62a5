#include "server/cas_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpcpp/server_context.h>

#include "server/lowering_request.h"
#include "server/unary_call.h"
#include "server/zstd_stream.h"
#include "src/base/error.h"

namespace lowerd::server {
namespace {

namespace reapi = build::bazel::remote::execution::v2;

absl::Status CheckFunction(reapi::DigestFunction::Value function) {
  if (function == reapi::DigestFunction::UNKNOWN || function == reapi::DigestFunction::SHA256) {
    return absl::OkStatus();
  }
  return MakeError(Reason::kNotSupported, "the only digest function of this server is SHA256");
}

absl::Status Store(blob::BlobStore& blobs, const reapi::BatchUpdateBlobsRequest::Request& request) {
  LOWERD_ASSIGN_OR_RETURN(const Digest digest, ParseDigest(request.digest(), "digest"));
  LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> missing, blobs.FindMissing({digest}));
  if (missing.empty()) return absl::OkStatus();
  LOWERD_ASSIGN_OR_RETURN(const std::unique_ptr<blob::BlobWriter> writer,
                          blobs.StartWrite(digest, ""));
  switch (request.compressor()) {
    case reapi::Compressor::IDENTITY:
      LOWERD_RETURN_IF_ERROR(writer->Append(request.data()));
      break;
    case reapi::Compressor::ZSTD: {
      ZstdDecompressor zstd;
      LOWERD_RETURN_IF_ERROR(zstd.Write(
          request.data(), [&](absl::string_view bytes) { return writer->Append(bytes); }));
      break;
    }
    default:
      return MakeError(Reason::kNotSupported, "the only compressor of this server is ZSTD");
  }
  return writer->Commit();
}

absl::StatusOr<std::string> Load(blob::BlobStore& blobs, const Digest& digest, bool zstd) {
  auto bytes = blob::GetBytes(blobs, digest, kMaxBatchBytes);
  // REAPI: a blob that is not there is NOT_FOUND for its reader.
  if (HasReason(bytes.status(), Reason::kBlobMissing)) {
    return NotFoundError("blob", digest.ToString());
  }
  if (!bytes.ok() || !zstd) return bytes;
  std::string compressed;
  ZstdCompressor().Write(*bytes, /*end=*/true, &compressed);
  return compressed;
}

void SetStatus(const absl::Status& status, google::rpc::Status* out) {
  out->ParseFromString(SerializeStatus(WithReason(status)));
}

}  // namespace

grpc::ServerUnaryReactor* CasService::FindMissingBlobs(
    grpc::CallbackServerContext* context, const reapi::FindMissingBlobsRequest* request,
    reapi::FindMissingBlobsResponse* response) {
  if (absl::Status status = CheckFunction(request->digest_function()); !status.ok()) {
    return FinishNow(*context, status);
  }
  std::vector<Digest> digests;
  for (int i = 0; i < request->blob_digests_size(); ++i) {
    auto digest = ParseDigest(request->blob_digests(i), absl::StrCat("blob_digests[", i, "]"));
    if (!digest.ok()) return FinishNow(*context, digest.status());
    digests.push_back(*std::move(digest));
  }
  return RunBlocking(
      pool_, [this, response, digests = std::move(digests)](const Cancellation&) -> absl::Status {
        LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> missing, blobs_.FindMissing(digests));
        for (const Digest& digest : missing) {
          *response->add_missing_blob_digests() = DigestToProto(digest);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* CasService::BatchUpdateBlobs(
    grpc::CallbackServerContext* context, const reapi::BatchUpdateBlobsRequest* request,
    reapi::BatchUpdateBlobsResponse* response) {
  if (absl::Status status = CheckFunction(request->digest_function()); !status.ok()) {
    return FinishNow(*context, status);
  }
  int64_t total = 0;
  for (const auto& blob : request->requests()) {
    // Sizes come from the client: bounded, so that their sum is.
    const int64_t size =
        std::max<int64_t>(blob.digest().size_bytes(), static_cast<int64_t>(blob.data().size()));
    total += std::min(size, kMaxBatchBytes + 1);
  }
  if (total > kMaxBatchBytes) {
    return FinishNow(
        *context,
        FieldError("requests", absl::StrCat("have ", total, " bytes; a batch may have ",
                                            kMaxBatchBytes, ", larger blobs go by ByteStream")));
  }
  return RunBlocking(pool_, [this, request, response](const Cancellation&) {
    for (const auto& blob : request->requests()) {
      auto* out = response->add_responses();
      transfers_.received += static_cast<int64_t>(blob.data().size());
      *out->mutable_digest() = blob.digest();
      SetStatus(Store(blobs_, blob), out->mutable_status());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* CasService::BatchReadBlobs(grpc::CallbackServerContext* context,
                                                     const reapi::BatchReadBlobsRequest* request,
                                                     reapi::BatchReadBlobsResponse* response) {
  if (absl::Status status = CheckFunction(request->digest_function()); !status.ok()) {
    return FinishNow(*context, status);
  }
  int64_t total = 0;
  for (const auto& digest : request->digests()) {
    total += std::min(std::max<int64_t>(digest.size_bytes(), 0), kMaxBatchBytes + 1);
  }
  if (total > kMaxBatchBytes) {
    return FinishNow(
        *context,
        FieldError("digests", absl::StrCat("name more than the ", kMaxBatchBytes,
                                           " bytes of a batch; larger blobs go by ByteStream")));
  }
  return RunBlocking(pool_, [this, request, response](const Cancellation&) {
    const auto& accepted = request->acceptable_compressors();
    const bool zstd =
        std::find(accepted.begin(), accepted.end(), reapi::Compressor::ZSTD) != accepted.end();
    for (int i = 0; i < request->digests_size(); ++i) {
      auto* out = response->add_responses();
      *out->mutable_digest() = request->digests(i);
      auto digest = ParseDigest(request->digests(i), absl::StrCat("digests[", i, "]"));
      auto bytes =
          digest.ok() ? Load(blobs_, *digest, zstd) : absl::StatusOr<std::string>(digest.status());
      SetStatus(bytes.status(), out->mutable_status());
      if (!bytes.ok()) continue;
      transfers_.sent += static_cast<int64_t>(bytes->size());
      *out->mutable_data() = *std::move(bytes);
      if (zstd) out->set_compressor(reapi::Compressor::ZSTD);
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* CapabilitiesService::GetCapabilities(
    grpc::CallbackServerContext* context, const reapi::GetCapabilitiesRequest*,
    reapi::ServerCapabilities* response) {
  auto* cache = response->mutable_cache_capabilities();
  cache->add_digest_functions(reapi::DigestFunction::SHA256);
  // lowerd's own action cache cannot be written to from outside.
  cache->mutable_action_cache_update_capabilities()->set_update_enabled(false);
  cache->set_max_batch_total_size_bytes(kMaxBatchBytes);
  cache->add_supported_compressors(reapi::Compressor::ZSTD);
  cache->add_supported_batch_update_compressors(reapi::Compressor::ZSTD);
  cache->set_max_cas_blob_size_bytes(max_blob_bytes_);
  response->mutable_low_api_version()->set_major(2);
  response->mutable_high_api_version()->set_major(2);
  response->mutable_high_api_version()->set_minor(3);
  return FinishNow(*context, absl::OkStatus());
}

}  // namespace lowerd::server
