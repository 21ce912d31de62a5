#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace lowerd::server {

// How many blob streams each client has, so that none takes all the room. Thread-safe.
class ClientLimits {
 public:
  // A stream that counts while this lives. Movable.
  class Place {
   public:
    Place(Place&& other) noexcept
        : limits_(std::exchange(other.limits_, nullptr)), at_(other.at_) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (limits_ != nullptr) limits_->Leave(at_);
    }

   private:
    friend class ClientLimits;
    using Counts = std::map<std::string, int>;
    Place(ClientLimits& limits, Counts::iterator at) : limits_(&limits), at_(at) {}

    ClientLimits* limits_;
    Counts::iterator at_;
  };

  // `per_client` streams at once. Must outlive the places.
  explicit ClientLimits(int per_client) : per_client_(per_client) {}

  // QUEUE_FULL with RetryInfo if the client has that many streams already.
  absl::StatusOr<Place> Enter(const std::string& client);

 private:
  void Leave(Place::Counts::iterator at);

  const int per_client_;
  absl::Mutex mutex_;
  // Of clients that have any.
  Place::Counts streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lowerd::server
