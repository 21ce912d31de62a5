#include "server/logging.h"

#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <grpc/support/log.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace lowerd::server {
namespace {

// The logger of LogEvent, whose lines end with what FormatEvent made.
constexpr char kTextEvents[] = "lowerd-events";
constexpr char kJsonEvents[] = "lowerd-json-events";

constexpr char kTextPattern[] = "%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v";
constexpr char kJsonMessagePattern[] =
    R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","thread":%t,"message":"%*"})";
constexpr char kJsonEventPattern[] =
    R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","thread":%t,%v})";

// `text` as the inside of a JSON string. Bytes that are no UTF-8 stay as they are: what the server
// logs has been checked or cleaned where it came in.
void AppendJsonText(absl::string_view text, std::string* out) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else {
      out->push_back(c);
    }
  }
}

// %* : the message as the inside of a JSON string.
class JsonText : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    std::string text;
    AppendJsonText({message.payload.data(), message.payload.size()}, &text);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonText>();
  }
};

// gRPC says on its own what its callers get as a status.
void LogOfGrpc(gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); }

std::unique_ptr<spdlog::formatter> Formatter(const char* pattern) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonText>('*').set_pattern(pattern);
  return formatter;
}

void Prepare(spdlog::logger& logger, const std::string& level, const char* pattern) {
  logger.set_formatter(Formatter(pattern));
  logger.set_level(spdlog::level::from_str(level == "error" ? "err" : level));
  logger.flush_on(spdlog::level::info);
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
  }
  return spdlog::level::info;
}

// Words as they are, everything else quoted.
std::string TextValue(absl::string_view value) {
  for (const char c : value) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '\\' || c == '=' || c == 0x7f) {
      return absl::StrCat("\"", absl::Utf8SafeCEscape(value), "\"");
    }
  }
  return std::string(value);
}

}  // namespace

void SetUpLogging(const std::string& level, LogFormat format) {
  const bool json = format == LogFormat::kJson;
  auto logger = spdlog::stderr_color_mt("lowerd");
  Prepare(*logger, level, json ? kJsonMessagePattern : kTextPattern);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogOfGrpc);
  Prepare(*spdlog::stderr_color_mt(json ? kJsonEvents : kTextEvents), level,
          json ? kJsonEventPattern : kTextPattern);
}

std::string FormatEvent(LogFormat format, absl::string_view event, const LogFields& fields) {
  std::string out;
  if (format == LogFormat::kJson) {
    out = "\"message\":\"";
    AppendJsonText(event, &out);
    out += '"';
    for (const auto& [name, value] : fields) {
      if (value.empty()) continue;
      absl::StrAppend(&out, ",\"", name, "\":\"");
      AppendJsonText(value, &out);
      out += '"';
    }
    return out;
  }
  out = std::string(event);
  for (const auto& [name, value] : fields) {
    if (!value.empty()) absl::StrAppend(&out, " ", name, "=", TextValue(value));
  }
  return out;
}

void LogEvent(LogLevel level, absl::string_view event, const LogFields& fields) {
  const std::shared_ptr<spdlog::logger> json = spdlog::get(kJsonEvents);
  std::shared_ptr<spdlog::logger> logger = json != nullptr ? json : spdlog::get(kTextEvents);
  if (logger == nullptr || !logger->should_log(ToSpdlog(level))) return;
  logger->log(ToSpdlog(level),
              spdlog::string_view_t(FormatEvent(
                  json != nullptr ? LogFormat::kJson : LogFormat::kText, event, fields)));
}

}  // namespace lowerd::server
