#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "src/base/fd.h"
#include "src/pool/syscall_filter.h"

namespace lowerd::pool {

// What keeps a job's child from doing anything but computing on the descriptors it was given. Made
// once in the zygote, entered by each child. Layers, each of which alone stops most attacks:
//
// - own session, no dumps, death with the zygote;
// - an unprivileged user ("nobody") where the zygote is root;
// - no new privileges, no capabilities;
// - Landlock with every access right of this kernel handled and none granted;
// - resource limits;
// - the system call filter (SyscallFilter).
//
// Thread-compatible.
class Sandbox {
 public:
  // Prepares what can be prepared before a fork and finds out, in a child of its own, which layers
  // this host gives. The process must have one thread.
  static absl::StatusOr<Sandbox> Prepare();

  // Layers that Enter puts in force, for the log: "landlock-abi-7", "seccomp", ...
  const std::vector<std::string>& in_force() const { return in_force_; }
  // Layers that this host refuses, with the reason: "landlock: Function not implemented".
  const std::vector<std::string>& missing() const { return missing_; }

  // In a new child: enters all layers that are in force, for ever. An error means that the child
  // must end. `zygote_pid` is the parent; the child ends with it. Returns the bytes of address
  // space in use, for LimitJob.
  absl::StatusOr<int64_t> Enter(int zygote_pid) const;

 private:
  enum class Layer : uint8_t {
    kSession,
    kUnprivilegedUser,
    kNoNewPrivileges,
    kNoCapabilities,
    kLandlock,
    kResourceLimits,
    kSeccomp,
  };
  struct Attempt {
    Layer layer;
    int error_number;
  };

  Sandbox() = default;
  // Returns 0 or an errno. Async-signal-safe.
  int Apply(Layer layer, int parent_pid) const;
  std::string Name(Layer layer) const;
  absl::StatusOr<std::vector<Attempt>> Probe() const;

  int landlock_abi_ = 0;
  int landlock_error_ = 0;
  Fd landlock_ruleset_;
  std::optional<SyscallFilter> filter_;
  std::string filter_error_;
  // In the order in which Enter applies them.
  std::vector<Layer> layers_;
  std::vector<std::string> in_force_;
  std::vector<std::string> missing_;
};

// Limits that depend on the job; for a child that is in the sandbox. 0 is no limit.
struct JobLimits {
  // Address space beyond `base_address_space`.
  int64_t memory_bytes = 0;
  // After that the kernel sends SIGXCPU.
  int64_t cpu_seconds = 0;
  // No file may grow beyond that: SIGXFSZ.
  int64_t file_bytes = 0;
};
absl::Status LimitJob(const JobLimits& limits, int64_t base_address_space);

}  // namespace lowerd::pool
