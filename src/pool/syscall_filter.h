#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <linux/filter.h>

namespace lowerd::pool {

// The seccomp filter of a job's child, compiled once in the zygote so that a child only installs
// it. Immutable.
//
// It is an allowlist: memory, threads, time, and I/O on descriptors that are already open. What
// libraries probe for and can do without gives an error (opening a file to read: EACCES; a system
// call that is not listed: ENOSYS, so that callers fall back). What only an attack or a broken
// backend does (opening for writing, exec, fork, sockets, ptrace, signals to others, namespaces,
// ...) raises SIGSYS; see InstallSigsysReport.
class SyscallFilter {
 public:
  static absl::StatusOr<SyscallFilter> Compile();

  // Applies the filter to the calling process, for ever. Needs no-new-privileges. Returns 0 or an
  // errno. Allocates nothing.
  int Install() const;

 private:
  explicit SyscallFilter(std::vector<sock_filter> program) : program_(std::move(program)) {}

  std::vector<sock_filter> program_;
};

// Installs a SIGSYS handler that writes the name of the forbidden system call to standard error
// and lets the signal end the process; fork() ends it the same way from now on. A process that
// removes the handler gains nothing: the call is not made in any case.
void InstallSigsysReport();

}  // namespace lowerd::pool
