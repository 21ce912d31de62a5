// Backend "test_hostile": attacks the process that runs its preprocess, in the way that the compile
// spec (a string) says. What it makes of a module never comes to an end when it is run.

#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <sys/socket.h>
#include <torch/csrc/jit/backends/backend.h>
#include <torch/csrc/jit/backends/backend_preprocess.h>
#include <torch/torch.h>

namespace lowerd::test_backends {
namespace {

using torch::jit::BackendDebugHandleGenerator;
using torch::jit::Module;

// Where lowerd-worker's children have their channel to lowerd.
constexpr int kChannelFd = 3;

[[noreturn]] void Spin() {
  volatile uint64_t n = 0;
  while (true) n = n + 1;
}

// Every frame is touched, and the compiler does not see that there is no end.
__attribute__((noinline)) int Recurse(volatile char* above) {
  volatile char frame[4096];
  frame[1] = 0;
  frame[0] = static_cast<char>(above[0] + 1);
  return above[1] == 0 ? Recurse(frame) + frame[0] : 0;
}

// Over the beginning of whatever is open.
void WriteTo(int fd) {
  constexpr char kRubbish[] = "rubbish";
  (void)!::pwrite(fd, kRubbish, sizeof kRubbish, 0);
  (void)!::write(fd, kRubbish, sizeof kRubbish);
}

void Attack(const std::string& how) {
  if (how == "spin") Spin();
  if (how == "crash") std::raise(SIGSEGV);
  if (how == "throw") throw 42;
  if (how == "overflow-stack") {
    volatile char first[4096] = {};
    Recurse(first);
  }
  if (how == "eat-memory") {
    constexpr size_t kChunk = size_t{16} << 20;
    while (true) std::memset(new char[kChunk], 1, kChunk);
  }
  if (how == "open-socket") ::socket(AF_INET, SOCK_STREAM, 0);
  if (how == "fork") ::fork();
  if (how == "bomb") {
    while (true) (void)!::fork();
  }
  if (how == "exec") ::execl("/bin/true", "true", nullptr);
  if (how == "kill-parent") ::kill(::getppid(), SIGKILL);
  if (how == "kill-all") ::kill(-1, SIGKILL);
  if (how == "create-file") ::open("left-behind", O_WRONLY | O_CREAT, 0600);
  if (how == "write-to-channel") WriteTo(kChannelFd);
  if (how == "write-to-descriptors") {
    for (int fd = 0; fd < 64; ++fd) {
      if (fd != kChannelFd) WriteTo(fd);
    }
  }
  // Goes on after the preprocess has returned.
  if (how == "leave-thread") std::thread(Spin).detach();
}

class HostileBackend final : public torch::jit::PyTorchBackendInterface {
 public:
  bool is_available() override { return true; }
  c10::impl::GenericDict compile(c10::IValue, c10::impl::GenericDict spec) override {
    c10::impl::GenericDict handles(c10::StringType::get(), c10::AnyType::get());
    for (const auto& entry : spec) handles.insert(entry.key(), entry.key());
    return handles;
  }
  c10::impl::GenericList execute(c10::IValue, c10::impl::GenericList) override { Spin(); }
};

c10::IValue Preprocess(const Module& module, const c10::Dict<c10::IValue, c10::IValue>& spec,
                       const BackendDebugHandleGenerator&) {
  for (const auto& entry : spec) Attack(entry.value().toStringRef());
  return module._ivalue();
}

const auto kBackend = torch::jit::backend<HostileBackend>("test_hostile");
const torch::jit::backend_preprocess_register kPreprocess("test_hostile", Preprocess);

}  // namespace
}  // namespace lowerd::test_backends
