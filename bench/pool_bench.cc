// Jobs per second of the worker pool on a tiny model, beside what they consist of: a bare fork, and
// the same lowering in a warm process.
//
//   pool_bench --benchmark_filter=Pool

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "src/base/digest.h"
#include "src/base/fd.h"
#include "src/pool/worker_pool.h"

namespace lowerd::pool {
namespace {

constexpr int64_t kModelLimit = 64 << 20;

std::string ReadModel(const char* name) {
  return ReadFileToString(std::string(LOWERD_TEST_MODELS) + "/" + name, kModelLimit).value();
}

Fd MemoryFile() { return Fd(::memfd_create("bench", MFD_CLOEXEC)); }

// Lowers three modules of the model to .pt and .ptl.
struct Lowering {
  Lowering(const std::string& bytes, const std::vector<std::string>& targets) {
    if (!WriteAll(model.get(), bytes).ok()) std::abort();
    const Digest digest = Digest::Of(bytes);
    job.request.mutable_model()->set_hash(digest.hex());
    job.request.mutable_model()->set_size_bytes(digest.size_bytes());
    for (const std::string& path : targets) {
      v1::Target& target = *job.request.add_targets();
      target.set_path(path);
      target.set_backend("reference");
      v1::Method& method = *target.add_methods();
      method.set_name("forward");
      method.mutable_compile_spec()->set_string("");
    }
    job.request.add_formats(v1::TORCHSCRIPT);
    job.request.add_formats(v1::LITE_BYTECODE);
    job.files = {{internal::Job::File::MODEL, digest.hex(), model.get()},
                 {internal::Job::File::ARTIFACT, "TORCHSCRIPT", script.get()},
                 {internal::Job::File::ARTIFACT, "LITE_BYTECODE", lite.get()}};
    job.claim_names = [](const internal::ClaimNames& claims) {
      internal::NamesGranted granted;
      for (int i = 0; i < claims.claims_size(); ++i) granted.add_mangle(i + 1);
      return granted;
    };
  }

  // Empties the artifacts for the next run.
  void Reset() {
    for (const int fd : {script.get(), lite.get()}) {
      if (::ftruncate(fd, 0) != 0 || ::lseek(fd, 0, SEEK_SET) != 0) std::abort();
    }
  }

  Fd model = MemoryFile();
  Fd script = MemoryFile();
  Fd lite = MemoryFile();
  WorkerPool::Job job;
};

std::unique_ptr<WorkerPool> MakePool(int workers) {
  WorkerPool::Options options;
  options.worker_program = LOWERD_WORKER;
  options.backend_libraries = {LOWERD_REFERENCE_BACKEND};
  options.workers = workers;
  return WorkerPool::Create(options).value();
}

// `workers` threads keep as many workers busy; items are jobs.
void RunJobs(benchmark::State& state, const std::string& model,
             const std::vector<std::string>& targets, int jobs) {
  const int workers = static_cast<int>(state.range(0));
  const std::unique_ptr<WorkerPool> pool = MakePool(workers);
  for (auto _ : state) {
    std::vector<std::thread> threads;
    std::atomic<int> left = jobs;
    std::atomic<bool> failed = false;
    for (int i = 0; i < workers; ++i) {
      threads.emplace_back([&] {
        Lowering lowering(model, targets);
        while (left.fetch_sub(1) > 0 && !failed) {
          lowering.Reset();
          const auto done = pool->Run(lowering.job);
          if (done.ok()) continue;
          failed = true;
          std::cerr << done.status() << "\n";
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (failed) state.SkipWithError("a job failed");
  }
  state.SetItemsProcessed(state.iterations() * jobs);
}

void BM_PoolTinyModel(benchmark::State& state) {
  RunJobs(state, ReadModel("tiny.pt"), {"a", "b", "c"}, 50);
}
BENCHMARK(BM_PoolTinyModel)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_PoolTinyModelOneTarget(benchmark::State& state) {
  RunJobs(state, ReadModel("tiny.pt"), {"a"}, 50);
}
BENCHMARK(BM_PoolTinyModelOneTarget)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_PoolMobilenet(benchmark::State& state) {
  RunJobs(state, ReadModel("mobilenet_v2.pt"), {"features.1", "features.2", "features.3"}, 4);
}
BENCHMARK(BM_PoolMobilenet)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// A job that ends before libtorch is asked for anything: what the pool itself costs.
void BM_PoolRefusedModel(benchmark::State& state) {
  const std::unique_ptr<WorkerPool> pool = MakePool(1);
  Lowering lowering("not a model", {"a"});
  for (auto _ : state) benchmark::DoNotOptimize(pool->Run(lowering.job));
}
BENCHMARK(BM_PoolRefusedModel)->UseRealTime()->Unit(benchmark::kMillisecond);

// Fork and exit of this small process.
void BM_ForkAndExit(benchmark::State& state) {
  for (auto _ : state) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
  }
}
BENCHMARK(BM_ForkAndExit)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lowerd::pool
