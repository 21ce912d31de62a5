#include "test/lowering/zip_writer.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <zlib.h>

namespace lowerd::lowering {
namespace {

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string Deflated(const std::string& data) {
  z_stream stream = {};
  if (deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("zlib does not start");
  }
  std::string out(deflateBound(&stream, data.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// The fields that local header and directory entry have in common, from "version needed" on.
std::string CommonFields(const ZipRecord& record, const std::string& stored, uint32_t crc,
                         size_t extra_size, const ZipOptions& options, bool local) {
  const bool later = local && options.descriptors;
  const uint32_t saturated = 0xffffffff;
  std::string out;
  Put<uint16_t>(out, 45);
  Put<uint16_t>(out, options.descriptors ? 8 : 0);
  Put<uint16_t>(out, record.deflate ? 8 : 0);
  Put<uint32_t>(out, 0);
  Put<uint32_t>(out, later ? 0 : crc);
  const auto stored_size = static_cast<uint32_t>(stored.size());
  const auto size = static_cast<uint32_t>(record.data.size());
  Put<uint32_t>(out, later ? 0 : options.zip64 ? saturated : stored_size);
  Put<uint32_t>(out, later ? 0 : options.zip64 ? saturated : size);
  Put<uint16_t>(out, static_cast<uint16_t>(record.name.size()));
  Put<uint16_t>(out, static_cast<uint16_t>(extra_size));
  return out;
}

}  // namespace

std::string WriteZip(const std::vector<ZipRecord>& records, const ZipOptions& options) {
  std::string out;
  std::string directory;
  for (const ZipRecord& record : records) {
    const std::string stored = record.deflate ? Deflated(record.data) : record.data;
    const auto crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(record.data.data()), record.data.size()));
    const size_t offset = out.size();
    std::string extra;
    if (options.zip64) {
      Put<uint16_t>(extra, 1);
      Put<uint16_t>(extra, 24);
      Put<uint64_t>(extra, record.data.size());
      Put<uint64_t>(extra, stored.size());
      Put<uint64_t>(extra, offset);
    }
    out += "PK\x03\x04" + CommonFields(record, stored, crc, 0, options, /*local=*/true) +
           record.name + stored;
    if (options.descriptors) {
      out += "PK\x07\x08";
      Put<uint32_t>(out, crc);
      Put<uint32_t>(out, static_cast<uint32_t>(stored.size()));
      Put<uint32_t>(out, static_cast<uint32_t>(record.data.size()));
    }
    directory += "PK\x01\x02";
    Put<uint16_t>(directory, 45);
    directory += CommonFields(record, stored, crc, extra.size(), options, /*local=*/false);
    directory.append(10, '\0');
    Put<uint32_t>(directory, options.zip64 ? 0xffffffff : static_cast<uint32_t>(offset));
    directory += record.name + extra;
  }
  const size_t begin = out.size();
  out += directory;
  if (options.zip64) {
    const size_t end64 = out.size();
    out += "PK\x06\x06";
    Put<uint64_t>(out, 44);
    Put<uint32_t>(out, 45 << 16 | 45);
    Put<uint64_t>(out, 0);
    Put<uint64_t>(out, records.size());
    Put<uint64_t>(out, records.size());
    Put<uint64_t>(out, directory.size());
    Put<uint64_t>(out, begin);
    out += "PK\x06\x07";
    Put<uint32_t>(out, 0);
    Put<uint64_t>(out, end64);
    Put<uint32_t>(out, 1);
  }
  out += "PK\x05\x06";
  Put<uint32_t>(out, 0);
  for (int i = 0; i < 2; ++i) {
    Put<uint16_t>(out, options.zip64 ? 0xffff : static_cast<uint16_t>(records.size()));
  }
  Put<uint32_t>(out, options.zip64 ? 0xffffffff : static_cast<uint32_t>(directory.size()));
  Put<uint32_t>(out, options.zip64 ? 0xffffffff : static_cast<uint32_t>(begin));
  Put<uint16_t>(out, 0);
  return out;
}

std::vector<ZipRecord> MinimalModel() {
  return {{"m/data.pkl", std::string("\x80\x02"
                                     "c__torch__\nM\n)\x81}b.")},
          {"m/code/__torch__.py", "class M(Module):\n  __parameters__ = []\n  __buffers__ = []\n",
           /*deflate=*/true},
          {"m/constants.pkl", std::string("\x80\x02).")},
          {"m/version", "3\n"}};
}

std::vector<ZipRecord> With(std::vector<ZipRecord> records, const std::string& name,
                            const std::string& data) {
  records = Without(std::move(records), name);
  records.push_back({"m/" + name, data});
  return records;
}

std::vector<ZipRecord> Without(std::vector<ZipRecord> records, const std::string& name) {
  std::erase_if(records, [&](const ZipRecord& record) { return record.name == "m/" + name; });
  return records;
}

}  // namespace lowerd::lowering
