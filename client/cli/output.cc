#include "client/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

#include "src/base/error.h"

namespace lowerd::cli {

absl::Status Print(absl::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return MakeError(Reason::kInternalError,
                     absl::StrCat("cannot write to stdout: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return MakeError(Reason::kInternalError,
                     absl::StrCat("the server's answer has no JSON form: ", status.ToString()));
  }
  return Print(json);
}

}  // namespace lowerd::cli
