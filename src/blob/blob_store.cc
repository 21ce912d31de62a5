#include "src/blob/blob_store.h"

#include "src/base/error.h"

namespace lowerd::blob {

absl::StatusOr<Digest> PutBytes(BlobStore& store, absl::string_view bytes) {
  const Digest digest = Digest::Of(bytes);
  LOWERD_ASSIGN_OR_RETURN(const std::vector<Digest> missing, store.FindMissing({digest}));
  if (missing.empty()) return digest;
  LOWERD_ASSIGN_OR_RETURN(const std::unique_ptr<BlobWriter> writer, store.StartWrite(digest, ""));
  LOWERD_RETURN_IF_ERROR(writer->Append(bytes));
  LOWERD_RETURN_IF_ERROR(writer->Commit());
  return digest;
}

absl::StatusOr<std::string> GetBytes(BlobStore& store, const Digest& digest, int64_t limit) {
  LOWERD_ASSIGN_OR_RETURN(const Fd fd, store.Open(digest));
  return ReadFileToString(fd.get(), limit);
}

}  // namespace lowerd::blob
