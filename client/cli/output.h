#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace lowerd::cli {

// Writes to stdout and flushes; an error if it cannot be written (a full disk, a closed pipe).
absl::Status Print(absl::string_view text);

// `message` as proto3 JSON.
absl::Status PrintJson(const google::protobuf::Message& message);

}  // namespace lowerd::cli
