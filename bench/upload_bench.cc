// Uploads of 1 GiB over ByteStream, beside their costs: the same messages streamed to a gRPC server
// in a process of its own that drops them, SHA-256 of the same bytes, and writing them to a file.
// The data directory is in memory (/dev/shm), so that no disk is measured.
//
//   upload_bench

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/bytestream/bytestream.grpc.pb.h"
#include <benchmark/benchmark.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>

#include "bench/lowerd_process.h"
#include "src/base/digest.h"
#include "src/base/fd.h"
#include "src/base/sha256.h"
#include "test/support/temp_dir.h"

namespace lowerd::bench {
namespace {

namespace bs = google::bytestream;

constexpr int64_t kBlobBytes = int64_t{1} << 30;
// The blob repeats this, so that its sender reads no disk and fits into little memory.
constexpr int64_t kPatternBytes = 64 << 20;
constexpr char kWriteMethod[] = "/google.bytestream.ByteStream/Write";
constexpr char kMemoryFolder[] = "/dev/shm";

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Takes uploads and drops their bytes unread.
class Sink final : public bs::ByteStream::WithRawCallbackMethod_Write<bs::ByteStream::Service> {
 public:
  grpc::ServerReadReactor<grpc::ByteBuffer>* Write(grpc::CallbackServerContext*,
                                                   grpc::ByteBuffer* response) override {
    const grpc::Slice empty;
    grpc::ByteBuffer(&empty, 1).Swap(response);
    class Reader final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
     public:
      Reader() { StartRead(&message_); }
      void OnReadDone(bool ok) override {
        if (ok) {
          StartRead(&message_);
        } else {
          Finish(grpc::Status::OK);
        }
      }
      void OnDone() override { delete this; }

     private:
      grpc::ByteBuffer message_;
    };
    return new Reader;
  }
};

// The address of a sink in a child process, which ends with this one. Call it before gRPC is used.
std::string StartSink() {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) std::abort();
  if (::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Sink sink;
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(8 << 20);
    builder.RegisterService(&sink);
    const auto server = builder.BuildAndStart();
    if (::write(pipe_ends[1], &port, sizeof port) != sizeof port) std::abort();
    server->Wait();
    std::_Exit(0);
  }
  int port = 0;
  if (::read(pipe_ends[0], &port, sizeof port) != sizeof port) std::abort();
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  return absl::StrCat("127.0.0.1:", port);
}

// A blob that no upload before had.
class Blob {
 public:
  Blob() : pattern_(static_cast<size_t>(kPatternBytes), '\0') {
    std::mt19937_64 random(1);
    for (size_t at = 0; at < pattern_.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(&pattern_[at], &word, sizeof word);
    }
  }

  // Makes it another one.
  void Change() {
    ++pattern_[0];
    Sha256 sha;
    Hash(sha);
    digest_ = Digest(sha.Finish(), kBlobBytes);
  }

  void Hash(Sha256& sha) const {
    for (int64_t at = 0; at < kBlobBytes; at += kPatternBytes) sha.Update(pattern_);
  }

  const Digest& digest() const { return digest_; }
  const std::string& pattern() const { return pattern_; }

  // The WriteRequest at `offset`: nothing of the data is copied before gRPC sends it.
  grpc::ByteBuffer Message(const std::string& name, int64_t offset, int64_t size) const {
    bs::WriteRequest head;
    if (offset == 0) head.set_resource_name(name);
    head.set_write_offset(offset);
    head.set_finish_write(offset + size == kBlobBytes);
    std::string bytes = head.SerializeAsString();
    // Field 10, length-delimited.
    bytes.push_back(10 << 3 | 2);
    for (auto left = static_cast<uint64_t>(size);; left >>= 7) {
      bytes.push_back(static_cast<char>((left & 0x7f) | (left > 0x7f ? 0x80 : 0)));
      if (left <= 0x7f) break;
    }
    const grpc::Slice slices[] = {
        grpc::Slice(bytes), grpc::Slice(pattern_.data() + offset % kPatternBytes,
                                        static_cast<size_t>(size), grpc::Slice::STATIC_SLICE)};
    return grpc::ByteBuffer(slices, 2);
  }

 private:
  std::string pattern_;
  Digest digest_;
};

Blob& TheBlob() {
  static Blob blob;
  return blob;
}

void Send(const std::string& address, int64_t message_bytes) {
  const Blob& blob = TheBlob();
  static int number = 0;
  const std::string name = absl::StrCat("uploads/", ++number, "/blobs/", blob.digest().hex(), "/",
                                        blob.digest().size_bytes());
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(Connect(address));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, kWriteMethod, &queue);
  const auto await = [&] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  bool sending = await();
  for (int64_t at = 0; at < kBlobBytes && sending; at += message_bytes) {
    call->Write(blob.Message(name, at, message_bytes), nullptr);
    sending = await();
  }
  call->WritesDone(nullptr);
  await();
  // The status comes only behind the response.
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  await();
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  if (!sending || !status.ok()) {
    std::cerr << "the upload failed: " << status.error_message() << "\n";
    std::exit(1);
  }
}

// CPU seconds of a process, by clock_getcpuclockid.
double CpuSeconds(int pid) {
  clockid_t clock;
  timespec used{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) std::abort();
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

const std::string* sink_address;

// The argument is the size of a message.
void BM_RawStream(benchmark::State& state) {
  for (auto _ : state) Send(*sink_address, state.range(0));
  state.SetBytesProcessed(state.iterations() * kBlobBytes);
}

void BM_Sha256(benchmark::State& state) {
  for (auto _ : state) {
    Sha256 sha;
    TheBlob().Hash(sha);
    benchmark::DoNotOptimize(sha.Finish());
  }
  state.SetBytesProcessed(state.iterations() * kBlobBytes);
}

// What the kernel takes for the file alone.
void BM_WriteFile(benchmark::State& state) {
  const test::TempDir folder;
  for (auto _ : state) {
    const Fd file = OpenFile(folder.File("blob"), O_CREAT | O_TRUNC | O_WRONLY).value();
    for (int64_t at = 0; at < kBlobBytes; at += kPatternBytes) {
      if (!WriteAll(file.get(), TheBlob().pattern()).ok()) std::abort();
    }
  }
  state.SetBytesProcessed(state.iterations() * kBlobBytes);
}

void BM_Upload(benchmark::State& state) {
  // Room for the upload and the one before.
  static const LowerdProcess server({"--workers", "1", "--blob-limit", "2200MiB"});
  const double before = CpuSeconds(server.pid());
  for (auto _ : state) {
    state.PauseTiming();
    TheBlob().Change();
    state.ResumeTiming();
    Send(server.address(), state.range(0));
  }
  state.counters["server_cpu_seconds"] =
      benchmark::Counter(CpuSeconds(server.pid()) - before, benchmark::Counter::kAvgIterations);
  state.SetBytesProcessed(state.iterations() * kBlobBytes);
}

BENCHMARK(BM_Sha256)->Iterations(2)->UseRealTime();
BENCHMARK(BM_WriteFile)->Iterations(2)->UseRealTime();
BENCHMARK(BM_RawStream)->Arg(1 << 20)->Arg(64 << 10)->Iterations(2)->UseRealTime();
BENCHMARK(BM_Upload)->Arg(1 << 20)->Arg(64 << 10)->Iterations(2)->UseRealTime();

}  // namespace
}  // namespace lowerd::bench

int main(int argc, char** argv) {
  ::setenv("TMPDIR", lowerd::bench::kMemoryFolder, 1);
  const std::string sink = lowerd::bench::StartSink();
  lowerd::bench::sink_address = &sink;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
