// Backend "test_compiler": compiles additions and subtractions of tensors ahead of time, refuses
// everything else with the model's source line, and tells where an error at run time came from by
// debug handles.

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/jit/backends/backend.h>
#include <torch/csrc/jit/backends/backend_exception.h>
#include <torch/csrc/jit/backends/backend_preprocess.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/torch.h>

namespace lowerd::test_backends {
namespace {

constexpr char kName[] = "test_compiler";

// (subtract instead of add, register, register, debug handle). The method's arguments are the first
// registers; each step adds one.
using Step = std::tuple<bool, int64_t, int64_t, int64_t>;
using Program = c10::List<Step>;

Program Compile(const torch::jit::Method& method,
                const torch::jit::BackendDebugHandleGenerator& make_handles) {
  const std::shared_ptr<torch::jit::Graph> graph = method.graph()->copy();
  // Debug handles know the way from the module to each node only once calls are inlined.
  torch::jit::Inline(*graph);
  torch::jit::EliminateDeadCode(graph);
  torch::jit::NodeToDebugHandle handles = make_handles(graph);
  std::map<const torch::jit::Value*, int64_t> registers;
  for (size_t i = 1; i < graph->inputs().size(); ++i) {
    registers.emplace(graph->inputs()[i], static_cast<int64_t>(i) - 1);
  }
  Program program;
  for (torch::jit::Node* node : graph->nodes()) {
    if (node->kind() == c10::prim::Constant) continue;
    TORCH_CHECK(node->kind() == c10::aten::add || node->kind() == c10::aten::sub,
                "test_compiler does not support ", node->kind().toQualString(), " at\n",
                node->sourceRange().str());
    program.push_back(Step(node->kind() == c10::aten::sub, registers.at(node->input(0)),
                           registers.at(node->input(1)), handles.at(node)));
    registers.emplace(node->output(), static_cast<int64_t>(registers.size()));
  }
  return program;
}

c10::IValue Preprocess(const torch::jit::Module& module,
                       const c10::Dict<c10::IValue, c10::IValue>& method_compile_spec,
                       const torch::jit::BackendDebugHandleGenerator& make_handles) {
  c10::Dict<std::string, Program> programs;
  for (const auto& entry : method_compile_spec) {
    const std::string& method = entry.key().toStringRef();
    programs.insert(method, Compile(module.get_method(method), make_handles));
  }
  return programs;
}

class CompilerBackend final : public torch::jit::PyTorchBackendInterface {
 public:
  bool is_available() override { return true; }

  c10::impl::GenericDict compile(c10::IValue processed, c10::impl::GenericDict) override {
    return processed.toGenericDict();
  }

  c10::impl::GenericList execute(c10::IValue handle, c10::impl::GenericList inputs) override {
    std::vector<at::Tensor> registers;
    for (const c10::IValue& input : inputs) registers.push_back(input.toTensor());
    for (const c10::IValue& step : handle.toListRef()) {
      const auto& fields = step.toTupleRef().elements();
      const at::Tensor& a = registers.at(static_cast<size_t>(fields[1].toInt()));
      const at::Tensor& b = registers.at(static_cast<size_t>(fields[2].toInt()));
      try {
        registers.push_back(fields[0].toBool() ? at::sub(a, b) : at::add(a, b));
      } catch (const c10::Error& error) {
        TORCH_DELEGATED_BACKEND_THROW(false, error.what_without_backtrace(), fields[3].toInt());
      }
    }
    c10::impl::GenericList outputs(c10::AnyType::get());
    outputs.push_back(registers.back());
    return outputs;
  }
};

const auto kBackend = torch::jit::backend<CompilerBackend>(kName);
const torch::jit::backend_preprocess_register kPreprocess(kName, Preprocess);

}  // namespace
}  // namespace lowerd::test_backends
