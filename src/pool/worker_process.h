#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "src/base/fd.h"
#include "src/pool/channel.h"

namespace lowerd::pool {

// A running lowerd-worker (a zygote). Killed and reaped at destruction. Thread-compatible.
class WorkerProcess {
 public:
  // Starts `program` by exec: control channel at descriptor 3, standard error inherited, own
  // session, cleared environment, nothing else inherited. The kernel kills the process when the
  // calling thread ends.
  static absl::StatusOr<WorkerProcess> Start(const std::string& program,
                                             const std::vector<std::string>& arguments);
  WorkerProcess(WorkerProcess&&) noexcept = default;
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  ~WorkerProcess();

  Channel& control() { return control_; }
  // Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  // Waits for the end, which it brings about after a second, and tells how it came: "exit code 1",
  // "signal SIGKILL (Killed)".
  std::string WaitForEnd();

 private:
  WorkerProcess(Fd pidfd, Channel control)
      : pidfd_(std::move(pidfd)), control_(std::move(control)) {}
  void Kill();

  Fd pidfd_;
  Channel control_;
};

// "signal SIGSEGV (Segmentation fault)".
std::string DescribeSignal(int signal);

}  // namespace lowerd::pool
