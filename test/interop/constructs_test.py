"""Every kind of construct, lowered and judged by stock PyTorch."""
import io
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
import unittest

import torch
from torch import Tensor, nn

import judge
import lowerd_testing as t

X = torch.linspace(-1, 1, 8).reshape(2, 4)
TORCHSCRIPT_ONLY = ("pt",)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.l(x)) + 0.25


class Gain(nn.Module):
    def __init__(self, gain=2.0):
        super().__init__()
        self.w = nn.Parameter(torch.rand(4) + gain)

    def forward(self, x):
        return x * self.w


class Two(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.b(self.a(x)) - 0.5


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Point(NamedTuple):
    x: Tensor
    y: Tensor


class GivesPoint(nn.Module):
    def forward(self, x):
        return Point(x + 1, x * 2)


class GivesNested(nn.Module):
    def forward(self, x):
        return x, (x + 1, [x, x * 2]), {"k": (x, 1)}


class GivesOne(nn.Module):
    def forward(self, x):
        return (x + 1,)


class GivesScalars(nn.Module):
    def forward(self, x):
        return x.size(0), float(x.size(1)), x.size(0) == 2, "text", torch.device("cpu")


class GivesNothing(nn.Module):
    def forward(self, x: Tensor) -> None:
        x.add_(1)


class GivesOptional(nn.Module):
    def forward(self, x, give: bool = False) -> Optional[Tensor]:
        if give:
            return x
        return None


class UsesOptional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GivesOptional()

    def forward(self, x):
        return self.a(x), self.a(x, True), self.a(give=True, x=x)


class Defaults(nn.Module):
    def forward(self, x, scale: float = 0.5, name: str = 'q"\'\n\\', n: int = -3, flag: bool = True,
                inf: float = float("inf"), other: Optional[Tensor] = None):
        if other is not None and flag:
            x = x + other
        return x * scale + float(len(name)) * float(n) + (0.0 if inf > 1e300 else 1.0)


class UsesDefaults(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Defaults()

    def forward(self, x):
        return self.a(x) + self.a(x, n=2, scale=2.0) + self.a(x, other=x)


class TakesContainers(nn.Module):
    def forward(self, d: Dict[str, Tensor], p: Tuple[Tensor, Tuple[int]], xs: List[Optional[Tensor]]):
        y = p[0] * float(p[1][0])
        for k, v in d.items():
            y = y + v * float(len(k))
        for x in xs:
            if x is not None:
                y = y + x
        return y


class GivesContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = TakesContainers()

    def forward(self, x):
        return self.a({"a": x, "bc": x + 1}, (x, (3,)), [x, None])


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x):
        self.n += 1
        return x + self.n


class This(nn.Module):
    def __init__(this):
        super().__init__()
        this.l = nn.Linear(4, 4)

    def forward(this, x):
        return this.l(x)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        return self.l(x)

    @torch.jit.export
    def encode(self, x, k: int = 3):
        return self.l(x) * float(k)


class UsesCoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Coder(), Coder()

    def forward(self, x):
        return self.b(self.a(x)) + self.a.encode(x, 5)


class Maybe(nn.Module):
    def __init__(self, down=None):
        super().__init__()
        self.down: Optional[nn.Module] = down
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        if self.down is not None:
            x = self.down(x)
        return self.l(x)


class ReadsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Gain()

    def forward(self, x):
        return self.a(x) + self.a.w


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        one = torch.jit.script(Linear())
        self.a = one
        self.wrap = Around(one)

    def forward(self, x):
        return self.a(x) + self.wrap(x)


@torch.jit.interface
class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class TypedGain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class UsesInterface(nn.Module):
    step: Step

    def __init__(self):
        super().__init__()
        self.step = TypedGain()
        self.a = Linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.step.forward(x))


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Linear(), Gain(), Linear()])
        self.named = nn.ModuleDict({"p": Linear(), "q": Linear()})

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        for name, block in self.named.items():
            if x.sum() > -1000:
                x = block(x)
        return x


class WithHooks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Linear(), Linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def doubled(self, input: Tuple[Tensor], output: Tensor):
    return output * 2


class Quantizable(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class ConstructsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(11)
        cls.server = t.Server().start()
        cls.addClassCleanup(cls.server.__exit__)

    def lower(self, model, targets, *flags, args=(X,), **named):
        return judge.Lowered(self.server, model, args, targets, *flags, **named)

    def refused(self, reason, model, targets, *flags, **named):
        with self.assertRaises(AssertionError) as caught:
            self.lower(model, targets, *flags, **named)
        self.assertIn("[%s]" % reason, str(caught.exception))
        return str(caught.exception)

    # ---- names
    def test_two_siblings_of_one_class_get_two_names(self):
        self.lower(Two(Linear(), Linear()), ["a", "b"])

    def test_one_of_two_siblings_leaves_the_other_as_it_was(self):
        lowered = self.lower(Two(Linear(), Linear()), ["a"])
        types = judge.module_types(torch.jit.load(lowered.files["pt"]))
        self.assertTrue(types["b"].startswith("__torch__"), types["b"])

    def test_owners_of_one_class_with_one_lowered_child(self):
        self.lower(Two(Around(Linear()), Around(Linear())), ["a.inner"])
        self.lower(Two(Around(Linear()), Around(Linear())), ["a.inner", "b.inner"])

    def test_class_called_like_its_child_and_receiver_of_another_name(self):
        self.lower(Two(This(), This()), ["a", "b"])

    def test_saved_and_loaded_before(self):
        model = torch.jit.script(Two(Linear(), Linear()).eval())
        for _ in range(3):
            data = io.BytesIO()
            torch.jit.save(model, data)
            data.seek(0)
            model = torch.jit.load(data)
        self.lower(model, ["a", "b"])

    def test_model_that_holds_lowered_modules_already(self):
        first = self.lower(Two(Linear(), Linear()), ["a"])
        again = self.lower(torch.jit.load(first.files["pt"]), ["b"])
        names = {m["loweredType"] for m in first.manifest["loweredModules"]}
        self.assertTrue(names <= {x["name"] for x in again.manifest["types"]})
        self.refused("ALREADY_LOWERED", torch.jit.load(first.files["pt"]), ["a"])

    def test_object_under_two_paths_is_lowered_once(self):
        lowered = self.lower(Shared(), ["a"])
        self.assertEqual(lowered.manifest["loweredModules"][0]["aliases"], ["wrap.inner"])

    def test_containers_and_numeric_names(self):
        self.lower(Loops(), ["blocks.0", "blocks.2", "named.q"])
        self.lower(nn.Sequential(nn.Sequential(Linear(), Gain()), Gain()), ["0.1", "1"])

    # ---- signatures
    def test_outputs_keep_their_exact_types(self):
        for module in (GivesNested(), GivesOne(), GivesNothing(), Around(GivesOne())):
            self.lower(Around(module), ["inner"])
        self.lower(Around(GivesPoint()), ["inner"], formats=TORCHSCRIPT_ONLY)

    def test_scalar_outputs(self):
        self.lower(Around(GivesScalars()), ["inner"], formats=TORCHSCRIPT_ONLY)

    def test_optional_outputs_and_keyword_calls(self):
        self.lower(UsesOptional(), ["a"])

    def test_defaults_of_every_kind(self):
        self.lower(UsesDefaults(), ["a"])
        self.lower(Defaults(), ["."])

    def test_container_inputs(self):
        self.lower(GivesContainers(), ["a"])

    def test_several_methods(self):
        self.lower(UsesCoder(), ["a"], "--method", "forward", "--method", "encode")

    # ---- structure
    def test_optional_submodules(self):
        self.lower(Two(Maybe(), Maybe(Gain())), ["a", "b.down"])
        self.refused("MODULE_IS_NONE", Two(Maybe(), Maybe(Gain())), ["a.down"])

    def test_interface_typed_attribute(self):
        self.lower(UsesInterface(), ["a"], formats=TORCHSCRIPT_ONLY)
        self.lower(UsesInterface(), ["step"], formats=TORCHSCRIPT_ONLY)

    def test_hooks_run_as_before(self):
        model = WithHooks()
        model.b.register_forward_hook(doubled)
        self.lower(model, ["a"])

    def test_traced_and_frozen(self):
        self.lower(torch.jit.trace(Two(Linear(), Linear()).eval(), X), ["a", "b"])
        self.lower(torch.jit.freeze(torch.jit.script(Two(Linear(), Gain()).eval())), ["."])

    def test_quantised(self):
        model = torch.ao.quantization.quantize_dynamic(Quantizable().eval(), {nn.Linear})
        self.lower(model, ["a"])

    def test_deep_tree(self):
        model = Linear()
        for _ in range(80):
            model = Around(model)
        self.lower(model, [".".join(["inner"] * 80)])

    # ---- state
    def test_weights_shared_with_what_is_not_lowered(self):
        lowered = self.lower(Tied(), ["a"])
        self.assertLess(lowered.manifest["artifacts"][0]["digest"]["sizeBytes"].__len__(), 6)

    def test_buffer_that_the_lowered_module_changes(self):
        lowered = self.lower(Around(Counter()), ["inner"], formats=("pt", "ptl"))
        for path in lowered.files.values():
            module = judge.load(path)
            first = judge.run(module, "forward", (X,))
            second = judge.run(module, "forward", (X,))
            judge.same(second, first + 1)

    def test_extra_files_are_kept_in_every_format(self):
        lowered = self.lower(Two(Linear(), Gain()), ["b"], extra_files={"labels.txt": "cat\ndog\n"})
        files = {"labels.txt": ""}
        torch.jit.load(lowered.files["pt"], _extra_files=files)
        self.assertEqual(files["labels.txt"], b"cat\ndog\n")
        self.assertIn("labels.txt", lowered.manifest["extraFiles"])
        for fmt in ("ptl", "ff"):
            with open(lowered.files[fmt], "rb") as file:
                self.assertIn(b"labels.txt", file.read(), fmt)

    def test_saved_again_by_python_it_is_the_same(self):
        lowered = self.lower(Two(Linear(), Linear()), ["a", "b"], formats=TORCHSCRIPT_ONLY)
        data = io.BytesIO()
        module = torch.jit.load(lowered.files["pt"])
        torch.jit.save(module, data)
        data.seek(0)
        again = torch.jit.load(data)
        judge.same(judge.run(again, "forward", (X,)), judge.run(lowered.original, "forward", (X,)))
        self.assertEqual(judge.module_types(again), judge.module_types(module))

    def test_error_inside_shows_the_hierarchy_with_debug_info(self):
        lowered = self.lower(Two(Linear(), Linear()), ["a", "b"], "--debug-info",
                             formats=("pt", "ptl"))
        for fmt in ("pt", "ptl"):
            module = judge.load(lowered.files[fmt])
            with self.assertRaises(RuntimeError) as caught:
                judge.run(module, "forward", (torch.rand(3, 7),))
            self.assertIn("torch.tanh(self.l(x))", str(caught.exception))
            self.assertIn("F.linear(input, self.weight", str(caught.exception))

    # ---- refusals
    def test_owner_that_reads_an_attribute_is_refused_with_its_source(self):
        message = self.refused("ATTRIBUTE_ACCESS", ReadsWeight(), ["a"])
        self.assertIn("self.a.w", message)

    def test_method_that_is_not_lowered_but_called_is_refused(self):
        message = self.refused("ATTRIBUTE_ACCESS", UsesCoder(), ["a"])
        self.assertIn("encode", message)

    def test_module_without_forward_is_refused(self):
        self.refused("METHOD_NOT_FOUND", Loops(), ["blocks"])


if __name__ == "__main__":
    unittest.main()
