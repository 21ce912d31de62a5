#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "lowerd/internal/worker.pb.h"
#include "lowerd/v1/lowering.pb.h"
#include "lowerd/v1/manifest.pb.h"

// The lowering engine: everything that touches a model. Runs in a job's child process, on one
// thread. Torch types stop at this header; torch exceptions end in the .cc files behind it.
namespace lowerd::lowering {

// Files that a job comes with; the descriptors are borrowed.
struct JobFiles {
  // Read-only; mmapped, never written.
  int model = -1;
  // By SHA-256 in hexadecimal.
  std::map<std::string, int> blobs;
  // Empty and writable, by format; one for each format of the request.
  std::map<v1::Format, int> artifacts;
};

// How a job speaks to the world.
class JobHost {
 public:
  virtual ~JobHost() = default;

  virtual void OnProgress(v1::LowerModelMetadata::State state, int targets_done,
                          int targets_total) = 0;
  // N for each claim, in order. Called at most once for a job, before anything is written.
  virtual absl::StatusOr<std::vector<uint32_t>> ClaimNames(const internal::ClaimNames& claims) = 0;
};

// What a zygote does once before it forks: loads the libraries (RTLD_NOW), reads their digests,
// warms libtorch up by one load, lowering and save of a built-in model. Single-threaded.
struct ToolchainOptions {
  std::vector<std::string> backend_libraries;
  std::vector<std::string> operator_libraries;
};
struct Toolchain {
  v1::Producer producer;
  std::vector<v1::Backend> backends;
};
absl::StatusOr<Toolchain> LoadToolchain(const ToolchainOptions& options);

// The three jobs. Requests are canonical, as server/lowering_request.h makes them: every target has
// a selector, a backend of the toolchain and methods sorted by name, each with its compile spec,
// and there is at least one format. No default is applied here. Errors carry the reasons of
// lowerd.v1.ErrorReason. The manifest comes without artifact digests (the server hashes the files).
absl::StatusOr<v1::Manifest> Lower(const v1::LowerModelRequest& request, const JobFiles& files,
                                   const Toolchain& toolchain, JobHost& host);
absl::StatusOr<v1::LoweringPlan> Plan(const v1::LowerModelRequest& request, const JobFiles& files,
                                      const Toolchain& toolchain, JobHost& host);
absl::StatusOr<v1::ModelDescription> Inspect(const v1::InspectModelRequest& request,
                                             const JobFiles& files, const Toolchain& toolchain);

}  // namespace lowerd::lowering
