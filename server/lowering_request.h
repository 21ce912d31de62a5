#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "lowerd/v1/lowering.pb.h"
#include "lowerd/v1/manifest.pb.h"
#include "src/base/digest.h"

namespace lowerd::server {

// A checked LowerModelRequest in canonical form: two requests for the same artifacts give the same
// canonical request, whatever the order of their targets, methods and formats, and whichever
// defaults they spell out.
struct LoweringRequest {
  // Only what the artifacts depend on, with all defaults filled in.
  v1::LowerModelRequest canonical;
  // SHA-256 in hexadecimal over the canonical request and the toolchain.
  std::string action_key;
  // Every blob that the request names, the model first, no duplicates.
  std::vector<Digest> inputs;
  absl::Duration timeout;
};

struct RequestLimits {
  absl::Duration default_timeout = absl::Seconds(60);
  absl::Duration max_timeout = absl::Minutes(30);
};

// What a server lowers with.
struct Toolchain {
  // SHA-256 in hexadecimal over versions and library digests; part of every action key.
  std::string identity;
  // That requests may name.
  std::set<std::string, std::less<>> backends;
};

Toolchain MakeToolchain(const v1::Producer& producer, const std::vector<std::string>& backends);

// Checks all that can be told without looking at the model: INVALID_REQUEST names the field,
// BACKEND_NOT_FOUND the backend and those that there are.
absl::StatusOr<LoweringRequest> ParseLoweringRequest(const v1::LowerModelRequest& request,
                                                     const Toolchain& toolchain,
                                                     const RequestLimits& limits);

// A Digest field; INVALID_REQUEST names it.
absl::StatusOr<Digest> ParseDigest(const build::bazel::remote::execution::v2::Digest& digest,
                                   const std::string& field);
build::bazel::remote::execution::v2::Digest DigestToProto(const Digest& digest);

}  // namespace lowerd::server
