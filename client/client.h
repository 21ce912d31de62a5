#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/longrunning/operations.pb.h"

#include "client/blob_transfer.h"
#include "client/client_options.h"
#include "client/local_file.h"
#include "grpc/health/v1/health.pb.h"
#include "lowerd/v1/lowering.pb.h"
#include "lowerd/v1/type_names.pb.h"

namespace lowerd::client {

// A client of one lowerd. Thread-safe; every call blocks, has a deadline, and is tried again where
// that is safe. Errors carry a reason of lowerd.v1.ErrorReason unless the server is no lowerd.
class Client {
 public:
  using OperationCallback = std::function<void(const google::longrunning::Operation&)>;

  // Connects at the first call. INVALID_REQUEST for options that cannot be.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();

  // Ends calls in flight with OPERATION_CANCELLED, and all later ones but CancelOperation. A
  // LowerModel in flight is let to its answer, so that the operation it starts has a name by which
  // it can be cancelled. Idempotent.
  void Stop();
  bool stopped() const;

  // See BlobTransfer.
  absl::Status Upload(absl::Span<const LocalFile* const> files, const ByteProgress& progress = {});
  absl::Status Download(absl::Span<const DownloadItem> items, const ByteProgress& progress = {});

  // Gives the request an id if it has none, so that trying again cannot start a second job.
  absl::StatusOr<google::longrunning::Operation> LowerModel(lowerd::v1::LowerModelRequest request);
  // Waits until the operation is done; `changed` sees every state that is received, in order.
  // Survives broken connections and restarts of the server. The operation's own failure is in
  // Operation.error, not in the status.
  absl::StatusOr<google::longrunning::Operation> Watch(const std::string& name,
                                                       const OperationCallback& changed = {});
  absl::StatusOr<lowerd::v1::LoweringPlan> Plan(const lowerd::v1::LowerModelRequest& request);
  absl::StatusOr<lowerd::v1::ModelDescription> Inspect(const Digest& model);
  absl::StatusOr<lowerd::v1::ListBackendsResponse> ListBackends();

  absl::StatusOr<google::longrunning::Operation> GetOperation(const std::string& name);
  absl::StatusOr<google::longrunning::ListOperationsResponse> ListOperations(
      const google::longrunning::ListOperationsRequest& request);
  // The operation as it is when done or when `timeout` has passed.
  absl::StatusOr<google::longrunning::Operation> WaitOperation(const std::string& name,
                                                               absl::Duration timeout);
  absl::Status CancelOperation(const std::string& name);
  absl::Status DeleteOperation(const std::string& name);

  absl::StatusOr<lowerd::v1::ResolveTypeNameResponse> ResolveTypeName(const std::string& name);
  absl::StatusOr<lowerd::v1::ListTypeNamesResponse> ListTypeNames(
      const lowerd::v1::ListTypeNamesRequest& request);

  // Of one service, or of the server if empty. Tried once.
  absl::StatusOr<grpc::health::v1::HealthCheckResponse> Health(const std::string& service);

 private:
  struct Stubs;

  Client(const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel);

  // One subscription; returns when it ends. `last` is the last state received.
  absl::Status WatchOnce(const std::string& name, const OperationCallback& changed,
                         google::longrunning::Operation& last, bool& received);

  Calls calls_;
  BlobTransfer blobs_;
  std::unique_ptr<Stubs> stubs_;
};

// OK, or the error that a finished operation ended with.
absl::Status OperationError(const google::longrunning::Operation& operation);

// OK response of a finished lowering; its error, or INTERNAL_ERROR if it is something else.
absl::StatusOr<lowerd::v1::LowerModelResponse> LoweringResult(
    const google::longrunning::Operation& operation);

// Where a lowering stands; defaults if the operation says nothing of it.
lowerd::v1::LowerModelMetadata LoweringProgress(const google::longrunning::Operation& operation);

}  // namespace lowerd::client
