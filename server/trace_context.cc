#include "server/trace_context.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

#include "build/bazel/remote/execution/v2/remote_execution.pb.h"

namespace lowerd::server {
namespace {

constexpr char kTraceparent[] = "traceparent";
constexpr char kRequestMetadata[] = "build.bazel.remote.execution.v2.requestmetadata-bin";
constexpr size_t kMaxField = 128;

bool IsLowerHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

// "{version}-{trace id}-{parent id}-{flags}"; versions to come may have more behind. Empty if it is
// not that.
std::string TraceIdOf(absl::string_view traceparent) {
  const std::vector<absl::string_view> parts = absl::StrSplit(traceparent, '-');
  if (parts.size() < 4 || parts[0].size() != 2 || parts[1].size() != 32 || parts[2].size() != 16 ||
      parts[3].size() != 2) {
    return "";
  }
  for (int i = 0; i < 4; ++i) {
    if (!IsLowerHex(parts[i])) return "";
  }
  if (parts[0] == "ff" || (parts[0] == "00" && parts.size() != 4)) return "";
  if (parts[1].find_first_not_of('0') == absl::string_view::npos) return "";
  return std::string(parts[1]);
}

std::string Clean(const std::string& text) {
  std::string out = text.substr(0, kMaxField);
  for (char& c : out) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return out;
}

}  // namespace

TraceContext TraceContextOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  TraceContext out;
  if (const auto found = metadata.find(kTraceparent); found != metadata.end()) {
    out.trace_id = TraceIdOf({found->second.data(), found->second.size()});
  }
  const auto found = metadata.find(kRequestMetadata);
  if (found == metadata.end()) return out;
  build::bazel::remote::execution::v2::RequestMetadata request;
  if (!request.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()))) {
    return out;
  }
  if (!request.tool_details().tool_name().empty()) {
    out.tool = Clean(absl::StrCat(request.tool_details().tool_name(), "/",
                                  request.tool_details().tool_version()));
  }
  out.invocation = Clean(request.tool_invocation_id());
  out.action = Clean(request.action_id());
  return out;
}

}  // namespace lowerd::server
