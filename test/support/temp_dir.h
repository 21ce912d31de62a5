#pragma once

#include <string>

namespace lowerd::test {

// A folder that is gone at the end.
class TempDir {
 public:
  // In $TMPDIR or /tmp.
  TempDir();
  explicit TempDir(const std::string& parent);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace lowerd::test
