#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include <grpcpp/support/byte_buffer.h>

namespace lowerd::server {

// A google.bytestream.WriteRequest read in place: the data stays in the message's own memory.
struct ParsedWriteRequest {
  std::string resource_name;
  int64_t write_offset = 0;
  bool finish_write = false;
  // The data field in pieces, in order. Valid while the buffer that was parsed lives.
  std::vector<absl::string_view> data;
};

// False if the bytes are no such message. Takes fields in any order, fields that it does not know,
// and messages in any number of slices; of a repeated field the last counts, as in protobuf.
bool ParseWriteRequest(grpc::ByteBuffer& buffer, ParsedWriteRequest* out);

}  // namespace lowerd::server
