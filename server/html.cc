#include "server/html.h"

namespace lowerd::server {

Html& Html::Text(absl::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '&':
        text_ += "&amp;";
        break;
      case '<':
        text_ += "&lt;";
        break;
      case '>':
        text_ += "&gt;";
        break;
      case '"':
        text_ += "&quot;";
        break;
      case '\'':
        text_ += "&#39;";
        break;
      default:
        text_ += c;
    }
  }
  return *this;
}

}  // namespace lowerd::server
