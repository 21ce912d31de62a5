#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/bytestream/bytestream.pb.h"
#include <grpcpp/support/byte_buffer.h>

#include "server/write_request_parser.h"

// The parser in place agrees with protobuf's, however the message is cut into slices.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // The first byte says how to cut.
  const size_t step = data[0] == 0 ? size : data[0];
  ++data;
  --size;
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < size; at += step) {
    slices.emplace_back(data + at, std::min(step, size - at));
  }
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  lowerd::server::ParsedWriteRequest parsed;
  const bool ours = lowerd::server::ParseWriteRequest(buffer, &parsed);
  google::bytestream::WriteRequest expected;
  const bool theirs = expected.ParseFromArray(data, static_cast<int>(size));
  // Where protobuf takes a message, so must we; we need not check UTF-8, which it does.
  if (theirs && !ours) __builtin_trap();
  if (!theirs) return 0;
  std::string bytes;
  for (const absl::string_view piece : parsed.data) absl::StrAppend(&bytes, piece);
  if (bytes != expected.data() || parsed.resource_name != expected.resource_name() ||
      parsed.write_offset != expected.write_offset() ||
      parsed.finish_write != expected.finish_write()) {
    __builtin_trap();
  }
  return 0;
}
