#include "src/rpc/resource_name.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "src/base/error.h"

namespace lowerd::rpc {
namespace {

constexpr absl::string_view kBlobs = "blobs";
constexpr absl::string_view kCompressedBlobs = "compressed-blobs";
constexpr absl::string_view kUploads = "uploads";
// Names have an instance and an id beside a digest, all of them short.
constexpr size_t kMaxNameBytes = 4096;
// Segments that an instance name must not have (REAPI).
constexpr absl::string_view kReserved[] = {
    kBlobs, kUploads, "actions", "actionResults", "operations", "capabilities", kCompressedBlobs};

bool IsReserved(absl::string_view segment) {
  return std::find(std::begin(kReserved), std::end(kReserved), segment) != std::end(kReserved);
}

absl::Status Malformed(absl::string_view name, absl::string_view why) {
  return FieldError("resource_name",
                    absl::StrCat("\"", absl::CHexEscape(name.substr(0, 300)), "\" ", why));
}

absl::StatusOr<ResourceName> Parse(absl::string_view name, bool write) {
  if (name.size() > kMaxNameBytes) {
    return FieldError("resource_name",
                      absl::StrCat("has ", name.size(), " bytes; a name may have ", kMaxNameBytes));
  }
  const std::vector<absl::string_view> segments = absl::StrSplit(name, '/');
  auto at = std::find_if(segments.begin(), segments.end(), IsReserved);
  ResourceName out;
  out.instance = absl::StrJoin(segments.begin(), at, "/");
  auto next = [&]() -> absl::string_view { return at == segments.end() ? "" : *at++; };

  absl::string_view kind = next();
  if (write) {
    if (kind != kUploads) return Malformed(name, "has no \"uploads/{uuid}/blobs/{hash}/{size}\"");
    out.upload_id = std::string(next());
    if (out.upload_id.empty()) return Malformed(name, "has no upload id");
    kind = next();
  }
  if (kind == kCompressedBlobs) {
    const absl::string_view compressor = next();
    if (compressor != "zstd") {
      return MakeError(Reason::kNotSupported,
                       absl::StrCat("compressor \"", absl::CHexEscape(compressor.substr(0, 40)),
                                    "\" is not supported; use zstd or none"));
    }
    out.compression = Compression::kZstd;
  } else if (kind != kBlobs) {
    return Malformed(name, "has no \"blobs/{hash}/{size}\"");
  }
  absl::string_view hash = next();
  if (hash == "blake3" || hash == "sha256tree") {
    return MakeError(Reason::kNotSupported,
                     absl::StrCat("digest function ", hash, " is not supported; use SHA-256"));
  }
  int64_t size;
  if (!absl::SimpleAtoi(next(), &size)) return Malformed(name, "has no size behind the hash");
  // Anything behind the size of an upload is the client's own metadata (REAPI).
  if (!write && at != segments.end()) return Malformed(name, "has more after the size");
  LOWERD_ASSIGN_OR_RETURN(out.digest, Digest::Parse(hash, size));
  return out;
}

}  // namespace

absl::StatusOr<ResourceName> ResourceName::ParseRead(absl::string_view name) {
  return Parse(name, /*write=*/false);
}

absl::StatusOr<ResourceName> ResourceName::ParseWrite(absl::string_view name) {
  return Parse(name, /*write=*/true);
}

std::string ResourceName::ToString() const {
  std::string out;
  if (!instance.empty()) absl::StrAppend(&out, instance, "/");
  if (!upload_id.empty()) absl::StrAppend(&out, kUploads, "/", upload_id, "/");
  absl::StrAppend(&out, compression == Compression::kZstd ? "compressed-blobs/zstd" : kBlobs, "/",
                  digest.ToString());
  return out;
}

}  // namespace lowerd::rpc
