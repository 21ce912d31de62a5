#include "client/cli/text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace lowerd::cli {
namespace {

// Length of the well-formed UTF-8 sequence that `text` begins with; 0 if it begins with none.
size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond Unicode.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

bool IsControl(absl::string_view sequence) {
  const unsigned char first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7f;
  const unsigned char second = static_cast<unsigned char>(sequence[1]);
  // C1 controls; line and paragraph separators; marks that turn the direction of text.
  if (sequence.size() == 2) return first == 0xc2 && second < 0xa0;
  if (sequence.size() != 3 || first != 0xe2) return false;
  const unsigned char third = static_cast<unsigned char>(sequence[2]);
  return (second == 0x80 && third >= 0xa8 && third <= 0xae) ||
         (second == 0x81 && third >= 0xa6 && third <= 0xa9);
}

// Columns are as wide as characters; model paths and type names have no wide ones.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      out.push_back('?');
      text.remove_prefix(1);
      continue;
    }
    const absl::string_view sequence = text.substr(0, length);
    if (IsControl(sequence)) {
      out.push_back(' ');
    } else {
      absl::StrAppend(&out, sequence);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  absl::string_view unit;
  for (const absl::string_view next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string FormatTime(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(time.seconds()),
                          absl::LocalTimeZone());
}

std::string ShowPath(absl::string_view path) { return path.empty() ? "." : Printable(path); }

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = Printable(cell);
  rows_.push_back(std::move(row));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      if (i + 1 < row.size()) out.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

}  // namespace lowerd::cli
