#include "src/lowering/zip_directory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "src/base/error.h"

namespace lowerd::lowering {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kLocalSize = 30;
constexpr size_t kCentralSize = 46;
constexpr size_t kEndSize = 22;
constexpr size_t kEnd64Size = 56;
constexpr size_t kLocator64Size = 20;
constexpr size_t kMaxComment = 65535;
constexpr uint16_t kExtra64 = 1;
constexpr uint16_t kEncrypted = 1;
// Sizes and checksum stand behind the data, not in the local header.
constexpr uint16_t kDataDescriptor = 8;
constexpr uint64_t kMaxSize = std::numeric_limits<int64_t>::max();

absl::Status Corrupt(absl::string_view what) {
  return MakeError(Reason::kModelCorrupt,
                   absl::StrCat("the archive is damaged: ", what,
                                "; export the model again or upload it again"));
}

// Little-endian numbers at offsets of a view; the caller has checked the size.
template <typename T>
T Load(absl::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// `count` bytes at `offset`, if they are inside the file.
std::optional<absl::string_view> Slice(absl::string_view file, uint64_t offset, uint64_t count) {
  if (offset > file.size() || count > file.size() - offset) return std::nullopt;
  return file.substr(static_cast<size_t>(offset), static_cast<size_t>(count));
}

std::optional<size_t> FindEnd(absl::string_view file) {
  if (file.size() < kEndSize) return std::nullopt;
  const size_t last = file.size() - kEndSize;
  const size_t first = last > kMaxComment ? last - kMaxComment : 0;
  for (size_t at = last + 1; at-- > first;) {
    if (Load<uint32_t>(file, at) == kEndSignature &&
        at + kEndSize + Load<uint16_t>(file, at + 20) == file.size()) {
      return at;
    }
  }
  return std::nullopt;
}

struct Directory {
  uint64_t entries = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
};

absl::StatusOr<Directory> LocateDirectory(absl::string_view file) {
  const std::optional<size_t> end = FindEnd(file);
  if (!end.has_value()) return Corrupt("it has no end record (is it cut off?)");
  Directory out;
  out.entries = Load<uint16_t>(file, *end + 10);
  out.size = Load<uint32_t>(file, *end + 12);
  out.offset = Load<uint32_t>(file, *end + 16);
  const bool needs_64 = out.entries == 0xffff || out.size == 0xffffffff || out.offset == 0xffffffff;
  if (needs_64 && *end >= kLocator64Size &&
      Load<uint32_t>(file, *end - kLocator64Size) == kLocator64Signature) {
    const uint64_t at = Load<uint64_t>(file, *end - kLocator64Size + 8);
    const auto record = Slice(file, at, kEnd64Size);
    if (!record.has_value() || Load<uint32_t>(*record, 0) != kEnd64Signature) {
      return Corrupt("its zip64 end record is not where it should be");
    }
    out.entries = Load<uint64_t>(*record, 32);
    out.size = Load<uint64_t>(*record, 40);
    out.offset = Load<uint64_t>(*record, 48);
  }
  if (!Slice(file, out.offset, out.size).has_value() || out.offset + out.size > *end) {
    return Corrupt("its directory lies outside of the file");
  }
  return out;
}

// Replaces saturated 32-bit fields by those of the zip64 extra field.
bool Apply64(absl::string_view extra, uint64_t& size, uint64_t& compressed, uint64_t& offset) {
  const bool wants[] = {size == 0xffffffff, compressed == 0xffffffff, offset == 0xffffffff};
  if (!wants[0] && !wants[1] && !wants[2]) return true;
  while (extra.size() >= 4) {
    const uint16_t id = Load<uint16_t>(extra, 0);
    const uint16_t length = Load<uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (length > extra.size()) return false;
    if (id == kExtra64) {
      size_t at = 0;
      uint64_t* const fields[] = {&size, &compressed, &offset};
      for (size_t i = 0; i < 3; ++i) {
        if (!wants[i]) continue;
        if (at + 8 > length) return false;
        *fields[i] = Load<uint64_t>(extra, at);
        at += 8;
      }
      return true;
    }
    extra.remove_prefix(length);
  }
  return false;
}

// Whether a local header says what the directory says, in the fields that it fills in.
bool Agrees(absl::string_view local, uint16_t method, uint32_t crc, uint64_t compressed,
            uint64_t size) {
  if (Load<uint16_t>(local, 8) != method) return false;
  if ((Load<uint16_t>(local, 6) & kDataDescriptor) != 0) return true;
  const uint32_t local_compressed = Load<uint32_t>(local, 18);
  const uint32_t local_size = Load<uint32_t>(local, 22);
  return Load<uint32_t>(local, 14) == crc &&
         (local_compressed == 0xffffffff || local_compressed == compressed) &&
         (local_size == 0xffffffff || local_size == size);
}

}  // namespace

bool HasZipEnd(absl::string_view file) { return FindEnd(file).has_value(); }

absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(absl::string_view file, int max_entries) {
  LOWERD_ASSIGN_OR_RETURN(const Directory directory, LocateDirectory(file));
  if (directory.entries > static_cast<uint64_t>(max_entries)) {
    return Corrupt(absl::StrCat("it has ", directory.entries, " records; at most ", max_entries,
                                " are accepted"));
  }
  absl::string_view rest = *Slice(file, directory.offset, directory.size);
  std::vector<ZipEntry> entries;
  // Begin and end of each entry's local header and data.
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (rest.size() < kCentralSize || Load<uint32_t>(rest, 0) != kCentralSignature) {
      return Corrupt(
          absl::StrCat("directory entry ", i, " of ", directory.entries, " is malformed"));
    }
    const uint16_t flags = Load<uint16_t>(rest, 8);
    const uint16_t method = Load<uint16_t>(rest, 10);
    const uint32_t crc = Load<uint32_t>(rest, 16);
    uint64_t compressed = Load<uint32_t>(rest, 20);
    uint64_t size = Load<uint32_t>(rest, 24);
    const uint16_t name_length = Load<uint16_t>(rest, 28);
    const uint16_t extra_length = Load<uint16_t>(rest, 30);
    const uint16_t comment_length = Load<uint16_t>(rest, 32);
    uint64_t offset = Load<uint32_t>(rest, 42);
    const size_t length = kCentralSize + name_length + extra_length + comment_length;
    if (length > rest.size()) return Corrupt(absl::StrCat("directory entry ", i, " is cut off"));
    const absl::string_view name = rest.substr(kCentralSize, name_length);
    const std::string shown =
        absl::StrCat("record \"", absl::CHexEscape(name.substr(0, 200)), "\"");
    if (!Apply64(rest.substr(kCentralSize + name_length, extra_length), size, compressed, offset)) {
      return Corrupt(absl::StrCat(shown, " has no usable zip64 sizes"));
    }
    rest.remove_prefix(length);
    if ((flags & kEncrypted) != 0) return Corrupt(absl::StrCat(shown, " is encrypted"));
    if (method != 0 && method != 8) {
      return Corrupt(absl::StrCat(shown, " is compressed by unknown method ", method));
    }
    if (size > kMaxSize) {
      return Corrupt(absl::StrCat(shown, " claims an impossible size of ", size, " bytes"));
    }
    if (method == 0 && size != compressed) {
      return Corrupt(absl::StrCat(shown, " is stored with two different sizes"));
    }

    const auto local = Slice(file, offset, kLocalSize);
    if (!local.has_value() || Load<uint32_t>(*local, 0) != kLocalSignature) {
      return Corrupt(absl::StrCat(shown, " is not where the directory says"));
    }
    const uint64_t header = kLocalSize + Load<uint16_t>(*local, 26) + Load<uint16_t>(*local, 28);
    const auto local_name = Slice(file, offset + kLocalSize, Load<uint16_t>(*local, 26));
    if (!local_name.has_value() || *local_name != name ||
        !Agrees(*local, method, crc, compressed, size)) {
      return Corrupt(absl::StrCat(shown, " and its directory entry disagree"));
    }
    if (offset + header > directory.offset || compressed > directory.offset - offset - header) {
      return Corrupt(
          absl::StrCat(shown, " claims ", compressed, " bytes, which the file does not hold"));
    }
    spans.emplace_back(offset, offset + header + compressed);
    entries.push_back({std::string(name), method, crc, static_cast<int64_t>(compressed),
                       static_cast<int64_t>(size), static_cast<int64_t>(offset + header)});
  }
  if (!rest.empty()) return Corrupt("its directory has bytes behind the last entry");
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first < spans[i - 1].second) return Corrupt("records overlap");
  }
  return entries;
}

}  // namespace lowerd::lowering
