#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "src/base/digest.h"
#include "src/blob/blob_store.h"

namespace lowerd::jobs {

enum class State { kQueued, kLoading, kLowering, kSerializing, kVerifying, kDone };

struct Progress {
  State state = State::kQueued;
  int targets_done = 0;
  // 0 until known.
  int targets_total = 0;
};

// One asked-for lowering. Request and result are opaque bytes here.
struct Operation {
  // "operations/{id}".
  std::string name;
  // Who asked; for fairness and request_id scope. May be empty.
  std::string client;
  std::string request_id;
  // Canonical request and toolchain identity; operations of one key share one job.
  std::string action_key;
  // Serialised lowerd.v1.LowerModelRequest.
  std::string request;
  // Input blobs, to be pinned while not done.
  std::vector<Digest> inputs;
  int priority = 0;
  bool bypass_cache = false;

  Progress progress;
  // 1 is next; 0 when not queued. Filled in by the reader, not stored.
  int queue_position = 0;
  int attempt = 0;
  bool cancel_requested = false;
  bool cached = false;

  bool done() const { return progress.state == State::kDone; }
  // When done: OK and `result`, or an error.
  absl::Status error;
  // Serialised lowerd.v1.LowerModelResponse.
  std::string result;
  // Blobs that the result names.
  std::vector<Digest> outputs;

  absl::Time created;
  std::optional<absl::Time> started;
  absl::Time updated;
  std::optional<absl::Time> ended;
};

// What a finished job gives.
struct JobResult {
  std::string result;
  std::vector<Digest> outputs;
  // False if the toolchain is not the one of the operation's action_key any more: the result is
  // right, but must not be found under that key.
  bool cacheable = true;
  // Keep the outputs until the end of the operation is recorded, so that they do not evict each
  // other.
  std::vector<std::shared_ptr<blob::Pin>> pins;
};

}  // namespace lowerd::jobs
