#pragma once

#include "absl/strings/string_view.h"

namespace lowerd::lowering {

// Whether a glob matches the whole of a dotted path: * and ? stay within one name, ** spans names,
// [ab] and [!ab] are classes; everything else stands for itself. Takes at most glob.size() times
// path.size() steps, whatever the glob.
bool GlobMatches(absl::string_view glob, absl::string_view path);

}  // namespace lowerd::lowering
