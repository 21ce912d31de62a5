#include "server/write_request_parser.h"

#include <algorithm>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include <grpcpp/support/proto_buffer_reader.h>

namespace lowerd::server {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr int kResourceName = 1;
constexpr int kWriteOffset = 2;
constexpr int kFinishWrite = 3;
constexpr int kData = 10;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
}

}  // namespace

bool ParseWriteRequest(grpc::ByteBuffer& buffer, ParsedWriteRequest* out) {
  grpc::ProtoBufferReader reader(&buffer);
  google::protobuf::io::CodedInputStream input(&reader);
  while (const uint32_t tag = input.ReadTag()) {
    switch (tag) {
      case Tag(kResourceName, WireFormatLite::WIRETYPE_LENGTH_DELIMITED):
        if (!WireFormatLite::ReadString(&input, &out->resource_name)) return false;
        break;
      case Tag(kWriteOffset, WireFormatLite::WIRETYPE_VARINT): {
        uint64_t value;
        if (!input.ReadVarint64(&value)) return false;
        out->write_offset = static_cast<int64_t>(value);
        break;
      }
      case Tag(kFinishWrite, WireFormatLite::WIRETYPE_VARINT): {
        uint64_t value;
        if (!input.ReadVarint64(&value)) return false;
        out->finish_write = value != 0;
        break;
      }
      case Tag(kData, WireFormatLite::WIRETYPE_LENGTH_DELIMITED): {
        uint32_t length;
        if (!input.ReadVarint32(&length)) return false;
        out->data.clear();
        while (length > 0) {
          const void* piece;
          int size;
          if (!input.GetDirectBufferPointer(&piece, &size)) return false;
          size = static_cast<int>(std::min<uint32_t>(static_cast<uint32_t>(size), length));
          out->data.emplace_back(static_cast<const char*>(piece), static_cast<size_t>(size));
          if (!input.Skip(size)) return false;
          length -= static_cast<uint32_t>(size);
        }
        break;
      }
      default:
        if (!WireFormatLite::SkipField(&input, tag)) return false;
    }
  }
  return input.ConsumedEntireMessage();
}

}  // namespace lowerd::server
