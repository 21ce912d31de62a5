#include "test/client/fake_lowerd.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <grpcpp/server_builder.h>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/rpc/grpc_status.h"
#include "src/rpc/resource_name.h"

namespace lowerd::client {
namespace {

namespace reapi = build::bazel::remote::execution::v2;
namespace bs = google::bytestream;
using google::longrunning::Operation;
using grpc::ServerContext;

constexpr int64_t kChunk = 64 << 10;
constexpr char kOperation[] = "operations/1";

reapi::Digest ToProto(const Digest& digest) {
  reapi::Digest proto;
  proto.set_hash(digest.hex());
  proto.set_size_bytes(digest.size_bytes());
  return proto;
}

grpc::Status Cut() { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset"); }

struct Blobs {
  absl::Mutex mutex;
  std::map<std::string, std::string> complete ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::string> partial ABSL_GUARDED_BY(mutex);
};

class ByteStream final : public bs::ByteStream::Service {
 public:
  ByteStream(FakeLowerd& fake, Blobs& blobs) : fake_(fake), blobs_(blobs) {}

  grpc::Status Write(ServerContext*, grpc::ServerReader<bs::WriteRequest>* reader,
                     bs::WriteResponse* response) override {
    bs::WriteRequest request;
    std::string name;
    bool first = true;
    while (reader->Read(&request)) {
      if (first) name = request.resource_name();
      const auto parsed = rpc::ResourceName::ParseWrite(name);
      if (!parsed.ok()) return rpc::ToGrpc(parsed.status());
      absl::MutexLock lock(&blobs_.mutex);
      absl::MutexLock fake_lock(&fake_.mutex);
      if (blobs_.complete.contains(parsed->digest.ToString())) {
        response->set_committed_size(parsed->digest.size_bytes());
        return grpc::Status::OK;
      }
      if (first) fake_.write_starts.push_back(request.write_offset());
      first = false;
      std::string& kept = blobs_.partial[name];
      if (request.write_offset() != static_cast<int64_t>(kept.size())) {
        return rpc::ToGrpc(MakeError(Reason::kOffsetOutOfRange, "not the committed offset"));
      }
      const int64_t end = static_cast<int64_t>(kept.size() + request.data().size());
      const auto cut = fake_.cut_uploads_at.upper_bound(static_cast<int64_t>(kept.size()));
      if (cut != fake_.cut_uploads_at.end() && *cut <= end) {
        kept += request.data().substr(0, static_cast<size_t>(*cut) - kept.size());
        fake_.cut_uploads_at.erase(cut);
        return Cut();
      }
      kept += request.data();
      if (!request.finish_write()) continue;
      if (Digest::Of(kept) != parsed->digest) {
        return rpc::ToGrpc(MakeError(Reason::kDigestMismatch, "wrong digest"));
      }
      response->set_committed_size(end);
      blobs_.complete[parsed->digest.ToString()] = kept;
      return grpc::Status::OK;
    }
    return Cut();
  }

  grpc::Status QueryWriteStatus(ServerContext*, const bs::QueryWriteStatusRequest* request,
                                bs::QueryWriteStatusResponse* response) override {
    absl::MutexLock lock(&blobs_.mutex);
    response->set_committed_size(
        static_cast<int64_t>(blobs_.partial[request->resource_name()].size()));
    return grpc::Status::OK;
  }

  grpc::Status Read(ServerContext*, const bs::ReadRequest* request,
                    grpc::ServerWriter<bs::ReadResponse>* writer) override {
    const auto parsed = rpc::ResourceName::ParseRead(request->resource_name());
    if (!parsed.ok()) return rpc::ToGrpc(parsed.status());
    std::string bytes;
    int64_t end;
    {
      absl::MutexLock lock(&blobs_.mutex);
      absl::MutexLock fake_lock(&fake_.mutex);
      const auto found = blobs_.complete.find(parsed->digest.ToString());
      if (found == blobs_.complete.end()) {
        return rpc::ToGrpc(NotFoundError("blob", parsed->digest.ToString()));
      }
      bytes = found->second;
      if (fake_.corrupt_downloads > 0) {
        --fake_.corrupt_downloads;
        bytes.back() ^= 1;
      }
      end = static_cast<int64_t>(bytes.size());
      const auto cut = fake_.cut_downloads_at.upper_bound(request->read_offset());
      if (cut != fake_.cut_downloads_at.end()) {
        end = *cut;
        fake_.cut_downloads_at.erase(cut);
      }
    }
    for (int64_t at = request->read_offset(); at < end; at += kChunk) {
      bs::ReadResponse response;
      response.set_data(
          bytes.substr(static_cast<size_t>(at), static_cast<size_t>(std::min(kChunk, end - at))));
      if (!writer->Write(response)) break;
    }
    return end == static_cast<int64_t>(bytes.size()) ? grpc::Status::OK : Cut();
  }

 private:
  FakeLowerd& fake_;
  Blobs& blobs_;
};

class Cas final : public reapi::ContentAddressableStorage::Service {
 public:
  Cas(FakeLowerd& fake, Blobs& blobs) : fake_(fake), blobs_(blobs) {}

  grpc::Status FindMissingBlobs(ServerContext*, const reapi::FindMissingBlobsRequest* request,
                                reapi::FindMissingBlobsResponse* response) override {
    absl::MutexLock lock(&blobs_.mutex);
    absl::MutexLock fake_lock(&fake_.mutex);
    for (const reapi::Digest& digest : request->blob_digests()) {
      const std::string key = absl::StrCat(digest.hash(), "/", digest.size_bytes());
      if (fake_.claim_missing || !blobs_.complete.contains(key)) {
        *response->add_missing_blob_digests() = digest;
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status BatchUpdateBlobs(ServerContext*, const reapi::BatchUpdateBlobsRequest* request,
                                reapi::BatchUpdateBlobsResponse* response) override {
    absl::MutexLock lock(&blobs_.mutex);
    absl::MutexLock fake_lock(&fake_.mutex);
    int64_t total = 0;
    for (const auto& one : request->requests()) {
      total += static_cast<int64_t>(one.data().size());
      blobs_.complete[Digest::Of(one.data()).ToString()] = one.data();
      *response->add_responses()->mutable_digest() = one.digest();
    }
    fake_.batch_sizes.push_back(total);
    return grpc::Status::OK;
  }

 private:
  FakeLowerd& fake_;
  Blobs& blobs_;
};

class Capabilities final : public reapi::Capabilities::Service {
 public:
  explicit Capabilities(FakeLowerd& fake) : fake_(fake) {}

  grpc::Status GetCapabilities(ServerContext*, const reapi::GetCapabilitiesRequest*,
                               reapi::ServerCapabilities* response) override {
    absl::MutexLock lock(&fake_.mutex);
    response->mutable_cache_capabilities()->set_max_batch_total_size_bytes(fake_.max_batch_bytes);
    return grpc::Status::OK;
  }

 private:
  FakeLowerd& fake_;
};

class Lowering final : public lowerd::v1::LoweringService::Service {
 public:
  Lowering(FakeLowerd& fake, Blobs& blobs) : fake_(fake), blobs_(blobs) {}

  grpc::Status LowerModel(ServerContext*, const lowerd::v1::LowerModelRequest* request,
                          Operation* response) override {
    absl::MutexLock lock(&fake_.mutex);
    fake_.request_ids.push_back(request->request_id());
    if (!fake_.lower_error.ok()) return rpc::ToGrpc(fake_.lower_error);
    response->set_name(kOperation);
    return grpc::Status::OK;
  }

  grpc::Status WatchOperation(ServerContext* context,
                              const lowerd::v1::WatchOperationRequest* request,
                              grpc::ServerWriter<Operation>* writer) override {
    Operation operation;
    operation.set_name(request->name());
    lowerd::v1::LowerModelMetadata metadata;
    metadata.set_state(lowerd::v1::LowerModelMetadata::LOWERING);
    operation.mutable_metadata()->PackFrom(metadata);
    writer->Write(operation);
    {
      absl::MutexLock lock(&fake_.mutex);
      ++fake_.watches;
      if (fake_.cut_watches > 0) {
        --fake_.cut_watches;
        return Cut();
      }
      if (fake_.never_done) {
        while (!context->IsCancelled()) {
          fake_.mutex.AwaitWithTimeout(absl::Condition(&Never, static_cast<void*>(nullptr)),
                                       absl::Milliseconds(10));
        }
        return grpc::Status::CANCELLED;
      }
    }
    absl::MutexLock lock(&blobs_.mutex);
    absl::MutexLock fake_lock(&fake_.mutex);
    operation.set_done(true);
    if (!fake_.run_error.ok()) {
      operation.mutable_error()->ParseFromString(SerializeStatus(fake_.run_error));
    } else {
      lowerd::v1::LowerModelResponse response;
      auto& artifact = *response.mutable_manifest()->add_artifacts();
      artifact.set_format(lowerd::v1::TORCHSCRIPT);
      *artifact.mutable_digest() = Keep(fake_.artifact);
      *response.mutable_manifest_digest() = Keep(fake_.manifest);
      operation.mutable_response()->PackFrom(response);
    }
    writer->Write(operation);
    return grpc::Status::OK;
  }

  grpc::Status ListBackends(ServerContext*, const lowerd::v1::ListBackendsRequest*,
                            lowerd::v1::ListBackendsResponse* response) override {
    response->add_backends()->set_name("reference\x1b[31m\nsecond line");
    return grpc::Status::OK;
  }

 private:
  static bool Never(void*) { return false; }

  reapi::Digest Keep(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(blobs_.mutex) {
    const Digest digest = Digest::Of(bytes);
    blobs_.complete[digest.ToString()] = bytes;
    return ToProto(digest);
  }

  FakeLowerd& fake_;
  Blobs& blobs_;
};

class Operations final : public google::longrunning::Operations::Service {
 public:
  explicit Operations(FakeLowerd& fake) : fake_(fake) {}

  grpc::Status CancelOperation(ServerContext*,
                               const google::longrunning::CancelOperationRequest* request,
                               google::protobuf::Empty*) override {
    absl::MutexLock lock(&fake_.mutex);
    fake_.cancelled.push_back(request->name());
    return grpc::Status::OK;
  }

 private:
  FakeLowerd& fake_;
};

}  // namespace

struct FakeLowerd::Services {
  explicit Services(FakeLowerd& fake)
      : byte_stream(fake, blobs),
        cas(fake, blobs),
        capabilities(fake),
        lowering(fake, blobs),
        operations(fake) {}

  Blobs blobs;
  ByteStream byte_stream;
  Cas cas;
  Capabilities capabilities;
  Lowering lowering;
  Operations operations;
};

FakeLowerd::FakeLowerd() : services_(std::make_unique<Services>(*this)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&services_->byte_stream);
  builder.RegisterService(&services_->cas);
  builder.RegisterService(&services_->capabilities);
  builder.RegisterService(&services_->lowering);
  builder.RegisterService(&services_->operations);
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeLowerd::~FakeLowerd() { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

void FakeLowerd::AddBlob(const std::string& bytes) {
  absl::MutexLock lock(&services_->blobs.mutex);
  services_->blobs.complete[Digest::Of(bytes).ToString()] = bytes;
}

std::string FakeLowerd::Blob(const std::string& bytes) {
  absl::MutexLock lock(&services_->blobs.mutex);
  const auto found = services_->blobs.complete.find(Digest::Of(bytes).ToString());
  return found == services_->blobs.complete.end() ? "absent" : found->second;
}

}  // namespace lowerd::client
