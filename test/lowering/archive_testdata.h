#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace lowerd::lowering {

// The bytes of a file of testdata/, which make_testdata.py there wrote with PyTorch.
inline std::string TestData(const std::string& name) {
  std::ifstream file(std::string(LOWERD_TESTDATA) + "/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open test data " + name);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace lowerd::lowering
