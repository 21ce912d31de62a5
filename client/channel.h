#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <grpcpp/channel.h>

#include "client/client_options.h"

namespace lowerd::client {

// A lazy channel: no connection is made here. INVALID_REQUEST for options that contradict each
// other or name files that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const ClientOptions& options);

// Whether CreateChannel would make a plaintext channel.
bool IsPlaintext(const ClientOptions& options);

// `server` with the default port if it has none.
std::string ServerAddress(absl::string_view server);

}  // namespace lowerd::client
