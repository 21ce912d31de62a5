#include "src/lowering/path_glob.h"

#include <cstddef>
#include <vector>

namespace lowerd::lowering {
namespace {

// What stands at one place of a glob.
struct Part {
  enum { kOne, kStar, kDoubleStar } kind;
  absl::string_view text;

  size_t size() const { return text.size(); }
  // For kOne.
  bool Takes(char c) const {
    if (text[0] == '?') return c != '.';
    if (text.size() == 1) return c == text[0];
    absl::string_view set = text.substr(1, text.size() - 2);
    const bool negated = set[0] == '!';
    if (negated) set.remove_prefix(1);
    return c != '.' && (set.find(c) != absl::string_view::npos) != negated;
  }
};

Part PartAt(absl::string_view glob) {
  if (glob.substr(0, 2) == "**") return {Part::kDoubleStar, glob.substr(0, 2)};
  if (glob[0] == '*') return {Part::kStar, glob.substr(0, 1)};
  const size_t end = glob[0] == '[' ? glob.find(']', 2) : absl::string_view::npos;
  return {Part::kOne, glob.substr(0, end == absl::string_view::npos ? 1 : end + 1)};
}

}  // namespace

bool GlobMatches(absl::string_view glob, absl::string_view path) {
  // Which places of the glob a match of what was read so far can have come to.
  std::vector<bool> at(glob.size() + 1), next(glob.size() + 1);
  auto enter = [&glob](std::vector<bool>& places, size_t place) {
    places[place] = true;
    // Stars may stand for nothing.
    while (place < glob.size() && glob[place] == '*') {
      place += PartAt(glob.substr(place)).size();
      places[place] = true;
    }
  };
  enter(at, 0);
  for (const char c : path) {
    next.assign(next.size(), false);
    for (size_t place = 0; place < glob.size(); ++place) {
      if (!at[place]) continue;
      const Part part = PartAt(glob.substr(place));
      if (part.kind == Part::kOne) {
        if (part.Takes(c)) enter(next, place + part.size());
      } else if (part.kind == Part::kDoubleStar || c != '.') {
        enter(next, place);
      }
    }
    at.swap(next);
  }
  return at[glob.size()];
}

}  // namespace lowerd::lowering
