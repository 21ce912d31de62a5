// What pool_bench's jobs cost without a pool: the engine in a warm process, and the fork of that
// process.

#include <fcntl.h>
#include <functional>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "src/base/fd.h"
#include "src/lowering/engine.h"

namespace lowerd::lowering {
namespace {

class Host final : public JobHost {
 public:
  void OnProgress(v1::LowerModelMetadata::State, int, int) override {}
  absl::StatusOr<std::vector<uint32_t>> ClaimNames(const internal::ClaimNames& claims) override {
    std::vector<uint32_t> out;
    for (int i = 0; i < claims.claims_size(); ++i) out.push_back(static_cast<uint32_t>(i + 1));
    return out;
  }
};

const Toolchain& WarmToolchain() {
  static const Toolchain& toolchain =
      *new Toolchain(LoadToolchain({{LOWERD_REFERENCE_BACKEND}, {}}).value());
  return toolchain;
}

struct Lowering {
  Lowering(const char* name, const std::vector<std::string>& targets)
      : model(OpenFile(std::string(LOWERD_TEST_MODELS) + "/" + name, O_RDONLY).value()) {
    for (const std::string& path : targets) {
      v1::Target& target = *request.add_targets();
      target.set_path(path);
      target.set_backend("reference");
      v1::Method& method = *target.add_methods();
      method.set_name("forward");
      method.mutable_compile_spec()->set_string("");
    }
    request.add_formats(v1::TORCHSCRIPT);
    request.add_formats(v1::LITE_BYTECODE);
    files.model = model.get();
    files.artifacts = {{v1::TORCHSCRIPT, script.get()}, {v1::LITE_BYTECODE, lite.get()}};
  }

  bool Run() {
    for (const int fd : {script.get(), lite.get()}) {
      if (::ftruncate(fd, 0) != 0 || ::lseek(fd, 0, SEEK_SET) != 0) return false;
    }
    Host host;
    const auto manifest = Lower(request, files, WarmToolchain(), host);
    if (!manifest.ok()) std::cerr << manifest.status() << "\n";
    return manifest.ok();
  }

  Fd model;
  Fd script{::memfd_create("bench", MFD_CLOEXEC)};
  Fd lite{::memfd_create("bench", MFD_CLOEXEC)};
  v1::LowerModelRequest request;
  JobFiles files;
};

void InProcess(benchmark::State& state, Lowering lowering) {
  (void)WarmToolchain();
  for (auto _ : state) {
    if (lowering.Run()) continue;
    state.SkipWithError("the job failed");
    break;
  }
}

double Milliseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
}

// What children cost the processor and the memory manager, which another load on the machine
// disturbs less than it does the time on the clock.
void ForkEach(benchmark::State& state, const std::function<bool()>& run) {
  (void)WarmToolchain();
  rusage before{}, after{};
  ::getrusage(RUSAGE_CHILDREN, &before);
  for (auto _ : state) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status == 0) continue;
    state.SkipWithError("the job failed");
    break;
  }
  ::getrusage(RUSAGE_CHILDREN, &after);
  using benchmark::Counter;
  state.counters["child_user_ms"] = Counter(
      Milliseconds(after.ru_utime) - Milliseconds(before.ru_utime), Counter::kAvgIterations);
  state.counters["child_system_ms"] = Counter(
      Milliseconds(after.ru_stime) - Milliseconds(before.ru_stime), Counter::kAvgIterations);
  state.counters["child_faults"] =
      Counter(static_cast<double>(after.ru_minflt - before.ru_minflt), Counter::kAvgIterations);
}

void Forked(benchmark::State& state, Lowering lowering) {
  ForkEach(state, [&] { return lowering.Run(); });
}

const std::vector<std::string> kTinyTargets = {"a", "b", "c"};
const std::vector<std::string> kMobilenetTargets = {"features.1", "features.2", "features.3"};

void BM_TinyModelInProcess(benchmark::State& state) {
  InProcess(state, Lowering("tiny.pt", kTinyTargets));
}
BENCHMARK(BM_TinyModelInProcess)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_TinyModelForked(benchmark::State& state) {
  Forked(state, Lowering("tiny.pt", kTinyTargets));
}
BENCHMARK(BM_TinyModelForked)->UseRealTime()->Unit(benchmark::kMillisecond);

const std::vector<std::string> kOneTarget = {"a"};

void BM_TinyModelOneTargetInProcess(benchmark::State& state) {
  InProcess(state, Lowering("tiny.pt", kOneTarget));
}
BENCHMARK(BM_TinyModelOneTargetInProcess)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_TinyModelOneTargetForked(benchmark::State& state) {
  Forked(state, Lowering("tiny.pt", kOneTarget));
}
BENCHMARK(BM_TinyModelOneTargetForked)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_MobilenetInProcess(benchmark::State& state) {
  InProcess(state, Lowering("mobilenet_v2.pt", kMobilenetTargets));
}
BENCHMARK(BM_MobilenetInProcess)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_MobilenetForked(benchmark::State& state) {
  Forked(state, Lowering("mobilenet_v2.pt", kMobilenetTargets));
}
BENCHMARK(BM_MobilenetForked)->UseRealTime()->Unit(benchmark::kMillisecond);

// Fork and exit of a process that has libtorch loaded and warm.
void BM_ForkAndExitOfWarmProcess(benchmark::State& state) {
  ForkEach(state, [] { return true; });
}
BENCHMARK(BM_ForkAndExitOfWarmProcess)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lowerd::lowering
