#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace lowerd {

// Bytes of the UTF-8 character that `text`, which must not be empty, begins with; 0 if there is
// none. Overlong forms, surrogates and what lies beyond Unicode are no characters.
size_t Utf8Length(absl::string_view text);

}  // namespace lowerd
