#include <algorithm>
#include <cstdint>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/pool/admission.h"

namespace lowerd::pool {
namespace {

// Files under /proc and /sys have no size, so that they are read until their end.
std::string ReadSmallFile(const std::string& path) {
  const auto file = OpenFile(path, O_RDONLY);
  std::string text;
  if (!file.ok()) return text;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::read(file->get(), buffer, sizeof buffer);
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// The tightest limit in `file` of the group at `path` and the groups around it.
int64_t TightestLimit(absl::string_view mount, std::string path, absl::string_view file,
                      int64_t limit) {
  while (true) {
    int64_t value = 0;
    const std::string text = ReadSmallFile(absl::StrCat(mount, path, "/", file));
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &value) && value > 0) {
      limit = std::min(limit, value);
    }
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return limit;
    path.resize(slash);
  }
}

}  // namespace

int64_t DetectMemoryBudget() {
  int64_t limit = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  // Lines are "0::/path" for the unified hierarchy and "4:memory:/path" for the older one.
  const std::string groups = ReadSmallFile("/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      limit = TightestLimit("/sys/fs/cgroup", fields[2], "memory.max", limit);
    } else if (fields[1] == "memory") {
      limit = TightestLimit("/sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes", limit);
    }
  }
  return limit / 5 * 4;
}

}  // namespace lowerd::pool
