#include "test/support/temp_dir.h"

#include <filesystem>
#include <stdexcept>
#include <stdlib.h>

namespace lowerd::test {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "lowerd-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lowerd::test
