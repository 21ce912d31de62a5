// lowerd-worker: the zygote that has libtorch and the backends loaded. Started by lowerd.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <CLI/CLI.hpp>

#include "lowerd/internal/worker.pb.h"
#include "src/base/error.h"
#include "src/base/version.h"
#include "src/lowering/engine.h"
#include "src/pool/zygote.h"

namespace lowerd {
namespace {

class EngineHost final : public lowering::JobHost {
 public:
  explicit EngineHost(pool::ChildHost& child) : child_(child) {}

  void OnProgress(v1::LowerModelMetadata::State state, int targets_done,
                  int targets_total) override {
    internal::Progress progress;
    progress.set_state(state);
    progress.set_targets_done(targets_done);
    progress.set_targets_total(targets_total);
    child_.SendProgress(progress);
  }

  absl::StatusOr<std::vector<uint32_t>> ClaimNames(const internal::ClaimNames& claims) override {
    LOWERD_ASSIGN_OR_RETURN(const internal::NamesGranted granted, child_.ClaimNames(claims));
    return std::vector<uint32_t>(granted.mangle().begin(), granted.mangle().end());
  }

 private:
  pool::ChildHost& child_;
};

absl::StatusOr<lowering::JobFiles> ToJobFiles(const internal::Job& job, absl::Span<const int> fds) {
  lowering::JobFiles files;
  for (int i = 0; i < job.files_size(); ++i) {
    const internal::Job::File& file = job.files(i);
    v1::Format format;
    switch (file.role()) {
      case internal::Job::File::MODEL:
        files.model = fds[i];
        break;
      case internal::Job::File::BLOB:
        files.blobs[file.key()] = fds[i];
        break;
      case internal::Job::File::ARTIFACT:
        if (!v1::Format_Parse(file.key(), &format)) {
          return MakeError(Reason::kInternalError,
                           absl::StrCat("a job has an artifact of unknown format ", file.key()));
        }
        files.artifacts[format] = fds[i];
        break;
      default:
        return MakeError(Reason::kInternalError, "a job has a file without a role");
    }
  }
  if (files.model < 0) return MakeError(Reason::kInternalError, "a job came without a model");
  return files;
}

absl::StatusOr<internal::Done> RunJob(const lowering::Toolchain& toolchain,
                                      const internal::Job& job, absl::Span<const int> fds,
                                      pool::ChildHost& child) {
  LOWERD_ASSIGN_OR_RETURN(const lowering::JobFiles files, ToJobFiles(job, fds));
  EngineHost host(child);
  internal::Done done;
  switch (job.kind()) {
    case internal::Job::LOWER: {
      LOWERD_ASSIGN_OR_RETURN(*done.mutable_manifest(),
                              lowering::Lower(job.request(), files, toolchain, host));
      return done;
    }
    case internal::Job::PLAN: {
      LOWERD_ASSIGN_OR_RETURN(*done.mutable_plan(),
                              lowering::Plan(job.request(), files, toolchain, host));
      return done;
    }
    case internal::Job::INSPECT: {
      v1::InspectModelRequest request;
      *request.mutable_model() = job.request().model();
      LOWERD_ASSIGN_OR_RETURN(*done.mutable_description(),
                              lowering::Inspect(request, files, toolchain));
      return done;
    }
    default:
      return MakeError(Reason::kInternalError, "a job of unknown kind");
  }
}

int Main(int argc, char** argv) {
  lowering::ToolchainOptions options;
  CLI::App app("lowerd-worker runs lowerd's jobs. It is started by lowerd.", "lowerd-worker");
  app.set_version_flag("--version", kVersion);
  app.add_option("--backend-lib", options.backend_libraries, "Library that registers backends");
  app.add_option("--op-lib", options.operator_libraries, "Library of custom operators");
  CLI11_PARSE(app, argc, argv);

  lowering::Toolchain toolchain;
  pool::ZygoteProgram program;
  program.load = [&]() -> absl::StatusOr<internal::FromZygote::Ready> {
    LOWERD_ASSIGN_OR_RETURN(toolchain, lowering::LoadToolchain(options));
    internal::FromZygote::Ready ready;
    *ready.mutable_producer() = toolchain.producer;
    for (const v1::Backend& backend : toolchain.backends) *ready.add_backends() = backend;
    return ready;
  };
  program.run_job = [&toolchain](const internal::Job& job, absl::Span<const int> fds,
                                 pool::ChildHost& host) {
    return RunJob(toolchain, job, fds, host);
  };
  return pool::RunZygote(program);
}

}  // namespace
}  // namespace lowerd

int main(int argc, char** argv) { return lowerd::Main(argc, argv); }
