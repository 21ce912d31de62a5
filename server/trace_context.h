#pragma once

#include <map>
#include <string>

#include <grpcpp/support/string_ref.h>

namespace lowerd::server {

// What ties a call to its caller's own records. Fields are empty where the caller says nothing, or
// nothing well-formed; they are short and hold no control characters.
struct TraceContext {
  // 32 hexadecimal digits of a W3C traceparent header.
  std::string trace_id;
  // Of REAPI's RequestMetadata: which run of which tool, for which action.
  std::string tool;
  std::string invocation;
  std::string action;
};

TraceContext TraceContextOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

}  // namespace lowerd::server
