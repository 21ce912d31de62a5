#pragma once

#include <atomic>
#include <cstdint>

namespace lowerd::server {

// Bytes of blobs over gRPC, as they stood on the wire (compressed ones compressed). The services
// count, the metrics read.
struct TransferCounts {
  std::atomic<int64_t> received = 0;
  std::atomic<int64_t> sent = 0;
};

}  // namespace lowerd::server
