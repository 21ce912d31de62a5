#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "src/base/digest.h"
#include "src/base/type_name.h"

namespace lowerd::names {

// What a lowered module's name stands for.
struct Origin {
  // Without mangle: torch.jit.LoweredModule.<backend>.<original type without its mangles>.
  std::string base_name;
  // SHA-256 over (model digest, canonical module path, backend and version, canonical compile
  // spec).
  Digest::Hash identity{};
  Digest model;
  // Empty for the root.
  std::string module_path;
  std::string backend;
  std::string backend_version;
  std::string original_type;
  // SHA-256 in hexadecimal of the canonical compile spec.
  std::string compile_spec_sha256;
  // The operation that claimed the name first.
  std::string operation;
};

struct NamedOrigin {
  Origin origin;
  uint32_t mangle = 0;
  absl::Time claimed;
};

// Where N of ___torch_mangle_<N> starts looking: SHA-256 over (base name, identity) taken into
// [0, range). PyTorch parses N with stoi, so range is at most 2^31 - 1; tests shrink it.
uint32_t PreferredMangle(absl::string_view base_name, const Digest::Hash& identity,
                         uint32_t range = kMangleRange);

// Gives out mangle numbers so that a published (base name, N) means one identity for ever, on every
// worker and replica. Thread-safe; calls may block on I/O.
class TypeNameRegistry {
 public:
  virtual ~TypeNameRegistry() = default;

  // N for each claim, in order, all in one durable transaction. The same (base name, identity) gets
  // the same N always; a new one gets its preferred N, or the next free one if another identity
  // holds it.
  virtual absl::StatusOr<std::vector<uint32_t>> Claim(absl::Span<const Origin> claims) = 0;

  // The N that Claim would give now; records nothing. For dry runs.
  virtual absl::StatusOr<std::vector<uint32_t>> Preview(absl::Span<const Origin> claims) = 0;

  // Everything that a name found in a log can mean, newest first: with or without mangle, wrapper
  // or lowered module, with ".method" behind, as code/....py path. Empty if nothing matches.
  virtual absl::StatusOr<std::vector<NamedOrigin>> Resolve(absl::string_view name) = 0;

  struct Page {
    std::vector<NamedOrigin> names;
    // Empty at the end.
    std::string next_page_token;
  };
  // By base name and N. `prefix` filters base names.
  virtual absl::StatusOr<Page> List(absl::string_view prefix, int page_size,
                                    absl::string_view page_token) = 0;
};

}  // namespace lowerd::names
