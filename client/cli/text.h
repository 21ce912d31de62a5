#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/timestamp.pb.h"

namespace lowerd::cli {

// `text` as one line that cannot steer a terminal: control characters become spaces, bytes that are
// not UTF-8 become "?". For everything that a model or a server says.
std::string Printable(absl::string_view text);

// "512 B", "1.5 KiB", "44.7 MiB".
std::string FormatBytes(int64_t bytes);

// "2026-01-31 12:00:00" in local time; "-" if it is not set.
std::string FormatTime(const google::protobuf::Timestamp& time);

// A module path as the command line spells it: "." for the root.
std::string ShowPath(absl::string_view path);

// Rows of cells in left-aligned columns. Value type.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  // As many cells as the header has.
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.size() == 1; }
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lowerd::cli
