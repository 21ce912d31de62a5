#pragma once

#include <string>
#include <vector>

namespace lowerd::lowering {

struct ZipRecord {
  // With the archive's top folder.
  std::string name;
  std::string data;
  bool deflate = false;
};

struct ZipOptions {
  // Sizes and offsets stand in zip64 fields, whether they need to or not.
  bool zip64 = false;
  // Local headers leave sizes and checksum to a descriptor behind the data.
  bool descriptors = false;
};

// A zip file of these records, one after another without padding. Names may be anything, also twice
// the same.
std::string WriteZip(const std::vector<ZipRecord>& records, const ZipOptions& options = {});

// The least that is a TorchScript archive: a module without attributes, in folder "m".
std::vector<ZipRecord> MinimalModel();
// `records` with that of this name (without the folder) replaced or added.
std::vector<ZipRecord> With(std::vector<ZipRecord> records, const std::string& name,
                            const std::string& data);
std::vector<ZipRecord> Without(std::vector<ZipRecord> records, const std::string& name);

}  // namespace lowerd::lowering
