#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "src/base/error.h"
#include "src/lowering/model_archive.h"
#include "src/lowering/pickle_machine.h"
#include "test/lowering/zip_writer.h"

// Every index that a parsed pickle holds is that of a value, values are no more than opcodes, and
// the tensors it declares are judged when it is the data.pkl of a model.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace lowering = lowerd::lowering;
  const absl::string_view pickle(reinterpret_cast<const char*>(data), size);
  const auto values = lowering::PickleValues::Parse(pickle, "data.pkl");
  if (!values.ok()) {
    if (lowerd::ReasonOf(values.status()).empty()) __builtin_trap();
    return 0;
  }
  const size_t count = values->values().size();
  if (count > size || &values->root() >= values->values().data() + count) __builtin_trap();
  size_t items = 0;
  for (const lowering::PickleValues::Value& value : values->values()) {
    items += value.items.size();
    for (const lowering::PickleValues::Index item : value.items) {
      if (item >= count) __builtin_trap();
    }
  }
  if (items > size) __builtin_trap();

  std::vector<lowering::ZipRecord> records =
      lowering::With(lowering::MinimalModel(), "data.pkl", std::string(pickle));
  for (const char* name : {"m/data/0", "m/data/1"}) records.push_back({name, std::string(24, 'x')});
  const std::string zip = lowering::WriteZip(records);
  const auto archive = lowering::ModelArchive::Open(zip);
  if (!archive.ok() && lowerd::ReasonOf(archive.status()) != "MODEL_CORRUPT") __builtin_trap();
  return 0;
}
