#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lowerd::pool {

// Lets children that are forked from now on not inherit libraries that they never call, which makes
// forks cheaper: a fork copies the description of every mapping and of every page that relocation
// touched. (Debian's libtorch 1.13 pulls in 230 libraries of OpenCV and FFmpeg for image and video
// operators that TorchScript does not have; without them fork and exit take a third less time.)
//
// Withheld is what has no thread-local variables and is loaded only because the library whose file
// name begins with `from` needs libraries whose names begin with one of `needed`. What anything
// else needs stays, such as what a backend brings. A child that calls into a withheld library ends
// with SIGSEGV. So that it never looks for symbols there either, everything must be bound before
// (LD_BIND_NOW), and nothing loaded later; and its parent must fork with _Fork, which calls no
// handlers of theirs. Returns the number of libraries.
int WithholdLibraries(absl::string_view from, const std::vector<std::string>& needed);

}  // namespace lowerd::pool
