#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace lowerd::server {

// Puts HTML together so that nothing gets in unescaped: markup comes from literals, everything else
// goes through Text, which is right between tags and in double-quoted attributes.
class Html {
 public:
  template <size_t N>
  Html& Raw(const char (&literal)[N]) {
    text_.append(literal, N - 1);
    return *this;
  }
  Html& Text(absl::string_view text);
  Html& Add(const Html& html) {
    text_ += html.text_;
    return *this;
  }

  std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace lowerd::server
