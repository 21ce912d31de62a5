#pragma once

#include "src/base/fd.h"
#include "src/pool/sandbox.h"
#include "src/pool/zygote.h"

namespace lowerd::pool {

// The wait status that stands for a child that could not be forked at all.
inline constexpr int kForkFailed = -1;
// Exit codes of a child that says nothing.
inline constexpr int kExitNoSandbox = 125;
inline constexpr int kExitChannelLost = 126;

// The life of a job's child, right after the fork: drops what it inherited, enters the sandbox,
// waits for one job, runs it and reports. Returns the code to _exit with.
int RunJobChild(const ZygoteProgram& program, const Sandbox& sandbox, int zygote_pid, Fd channel,
                Fd log);

}  // namespace lowerd::pool
