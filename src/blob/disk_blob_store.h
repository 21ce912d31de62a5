#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "src/blob/blob_store.h"

namespace lowerd::blob {

// Blobs as files of one directory:
//   cas/<first two digits>/<sha256>-<size>   complete blobs; the name says all, so that a start
//   needs no
//                                            more than to list the folders
//   uploads/<sha256>-<size>-<id>             uploads that can be resumed, also after a restart
//   quarantine/, trash/                      what does not belong, and what is being deleted
// A blob is written elsewhere, flushed, and linked into cas/ under its name; so whatever stands
// there is complete, whenever the process or the machine went down.
class DiskBlobStore : public BlobStore {
 public:
  struct Options {
    // Created if it is not there.
    std::string directory;
    // Above this, least recently used blobs that nobody pins are evicted, after uploads that nobody
    // went on with for ten minutes; 0 is no limit. Counts uploads under way and interrupted ones.
    int64_t limit_bytes = 0;
    int64_t max_blob_bytes = int64_t{64} << 30;
    // Flush a blob and its folder to the disk before it becomes visible. Without, blobs that were
    // acknowledged shortly before a power failure can be lost (never before a mere crash of
    // lowerd).
    bool fsync = true;
    // An upload that nobody went on with for so long is discarded.
    absl::Duration upload_expiry = absl::Hours(24);
  };

  // OPERATION_STATE if another store, in this process or another, has the directory open. Lists
  // what is there. Files that do not belong are moved to quarantine/ and logged by the caller
  // through Quarantined().
  static absl::StatusOr<std::unique_ptr<DiskBlobStore>> Create(Options options);

  // Files that Create moved aside.
  virtual int64_t quarantined() const = 0;
};

}  // namespace lowerd::blob
