// Signatures and structures: what a lowered module takes and gives is what the original does, in
// every format.

#include <ostream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/lowering/engine_fixture.h"

namespace lowerd::lowering::testing {
namespace {

struct Construct {
  const char* name;
  // Methods of the module that is lowered, with parameter `weight`, and of its owner, which holds
  // it as `a` and gives whatever it gives.
  const char* leaf;
  const char* owner;
};

std::ostream& operator<<(std::ostream& out, const Construct& construct) {
  return out << construct.name;
}

constexpr char kPass[] = "def forward(self, x):\n    return self.a.forward(x)\n";

constexpr Construct kConstructs[] = {
    {"TupleOfOne", "def forward(self, x):\n    return (x * self.weight,)\n", kPass},
    {"NestedTuples", "def forward(self, x):\n    return x, (x + 1, [x, x * 2]), {'k': (x, 1)}\n",
     kPass},
    {"TupleInTuple", "def forward(self, x):\n    return ((x, (x,)),)\n", kPass},
    {"NoneThatChangesItsInput", "def forward(self, x) -> None:\n    x.add_(self.weight)\n",
     "def forward(self, x):\n    self.a.forward(x)\n    return x\n"},
    {"Optional",
     "def forward(self, x, give: bool = False) -> Optional[Tensor]:\n"
     "    if give:\n        return x\n    return None\n",
     "def forward(self, x):\n"
     "    return self.a.forward(x), self.a.forward(x, True), "
     "self.a.forward(give=True, x=x)\n"},
    {"Scalars", "def forward(self, x):\n    return 1, 2.5, True, 'te\"xt\\n', x.size(0)\n", kPass},
    {"Int", "def forward(self, x) -> int:\n    return x.size(0)\n", kPass},
    {"ListOfTensors", "def forward(self, x):\n    return [x, x + self.weight]\n", kPass},
    {"EmptyList", "def forward(self, x) -> List[int]:\n    out: List[int] = []\n    return out\n",
     kPass},
    {"Dict",
     "def forward(self, x) -> Dict[str, List[Tensor]]:\n"
     "    return {'a': [x], 'b': [x, x]}\n",
     kPass},
    {"DictByInt", "def forward(self, x):\n    return {1: x, 2: x + 1}\n", kPass},
    {"KeywordOnlyAndDefaults",
     "def forward(self, x, *, scale: float = 0.5, n: int = -3, "
     "other: Optional[Tensor] = None):\n"
     "    if other is not None:\n        x = x + other\n"
     "    return x * scale + n * self.weight\n",
     "def forward(self, x):\n"
     "    return self.a.forward(x) + self.a.forward(x, n=2, scale=2.0) + "
     "self.a.forward(x, other=x)\n"},
    {"Containers",
     "def forward(self, d: Dict[str, Tensor], p: Tuple[Tensor, Tuple[int]], "
     "xs: List[Optional[Tensor]]):\n"
     "    y = p[0] * p[1][0]\n"
     "    for k, v in d.items():\n        y = y + v * len(k)\n"
     "    for x in xs:\n        if x is not None:\n            y = y + x\n"
     "    return y\n",
     "def forward(self, x):\n"
     "    xs: List[Optional[Tensor]] = [x, None]\n"
     "    return self.a.forward({'a': x, 'bc': x + 1}, (x, (3,)), xs)\n"},
    {"ReceiverOfAnotherName", "def forward(this, x):\n    return x * this.weight\n", kPass},
    {"ArgumentsNamedLikeOurOwn",
     "def forward(self, lowerd_argument_2, lowerd_argument_1: int = 2):\n"
     "    typed_inputs = lowerd_argument_2 * lowerd_argument_1\n"
     "    return typed_inputs\n",
     "def forward(self, x):\n"
     "    return self.a.forward(x, lowerd_argument_1=5) + self.a.forward(x)\n"},
    {"CalledInBranchesAndLoops", "def forward(self, x):\n    return x * self.weight\n",
     "def forward(self, x):\n"
     "    if bool(x.sum() > -100):\n        x = self.a.forward(x)\n"
     "    else:\n        x = self.a.forward(x + 1)\n"
     "    for i in range(3):\n        x = self.a.forward(x) + i\n"
     "    return x\n"},
    {"CalledByAnotherMethod", "def forward(self, x):\n    return x * self.weight\n",
     "def helper(self, x):\n    return self.a.forward(x)\n"
     "def forward(self, x):\n    return self.helper(x) + self.helper(x + 1)\n"}};

class EngineConstruct : public ::testing::TestWithParam<Construct> {
 protected:
  std::string Model() const {
    const auto unit = std::make_shared<torch::jit::CompilationUnit>();
    torch::jit::Module leaf = NewModule("Inner", unit);
    leaf.register_parameter("weight", at::rand({4}), /*is_buffer=*/false);
    leaf.define(GetParam().leaf);
    torch::jit::Module owner = NewModule("Owner", unit);
    owner.register_module("a", leaf);
    owner.define(GetParam().owner);
    return Save(owner);
  }
};

TEST_P(EngineConstruct, GivesWhatTheOriginalGives) {
  const std::string model = Model();
  const auto lowered = RunLower(model, Request(model, {"a"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
}

TEST_P(EngineConstruct, GivesWhatTheOriginalGivesAsAWhole) {
  const std::string model = Model();
  const auto lowered = RunLower(model, Request(model, {""}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
}

INSTANTIATE_TEST_SUITE_P(All, EngineConstruct, ::testing::ValuesIn(kConstructs),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(EngineMethods, SeveralMethodsEachWithItsOwnSpec) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module coder = NewModule("Coder", unit);
  coder.register_parameter("weight", at::rand({4}), /*is_buffer=*/false);
  coder.define(
      "def forward(self, x):\n    return x * self.weight\n"
      "def encode(self, x, k: int = 3):\n    return x * self.weight + k\n");
  torch::jit::Module owner = NewModule("Owner", unit);
  owner.register_module("a", coder);
  owner.define("def forward(self, x):\n    return self.a.forward(x) + self.a.encode(x, k=1)\n");
  const std::string model = Save(owner);
  v1::LowerModelRequest request = Request(model, {"a"}, "reference", {"encode", "forward"});
  v1::Value& spec = *request.mutable_targets(0)->mutable_methods(0)->mutable_compile_spec();
  v1::DictValue::Entry& entry = *spec.mutable_dict()->add_entries();
  entry.mutable_key()->set_string("levels");
  entry.mutable_value()->mutable_list()->add_values()->set_int_(3);
  const auto lowered = RunLower(model, request);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(lowered->manifest.lowered_modules(0).methods(),
              ::testing::ElementsAre("encode", "forward"));
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
}

TEST(EngineMethods, MethodsThatAreNotLoweredStay) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module pair = NewPair(NewLeaf(unit), NewLeaf(unit));
  pair.define("def other(self, x, k: int = 2):\n    return self.forward(x) * k\n");
  const std::string model = Save(pair);
  const auto lowered = RunLower(model, Request(model, {"a"}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)}, "other");
}

TEST(EngineMethods, ADeepTreeIsRetypedToTheRoot) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module module = NewLeaf(unit);
  std::string path = "inner";
  for (int i = 0; i < 60; ++i) {
    torch::jit::Module around = NewModule("Around" + std::to_string(i), unit);
    around.register_module("inner", module);
    around.define("def forward(self, x):\n    return self.inner.forward(x)\n");
    module = around;
    if (i != 0) path += ".inner";
  }
  const std::string model = Save(module);
  const auto lowered = RunLower(model, Request(model, {path}));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ExpectSameOutputs(model, *lowered, {at::linspace(-1, 1, 4)});
}

}  // namespace
}  // namespace lowerd::lowering::testing
