"""What people reported of PyTorch's tools and others that lower models; docs/reports.md has the whole table."""
import copy
import io
import os
import re
import tempfile
from typing import Any, Dict, NamedTuple, Tuple
import unittest
import zipfile

import torch
from torch import Tensor, nn

import judge
import lowerd_testing as t

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.l(x)) + 0.25


class Two(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.b(self.a(x)) - 0.5


def plus():
    class Same(nn.Module):
        def forward(self, x):
            return x + 1
    return Same()


def times():
    class Same(nn.Module):
        def forward(self, x):
            return x * 3
    return Same()


class WithState(nn.Module):
    """Keeps something else in files than it has in memory."""

    def __init__(self):
        super().__init__()
        self.w = torch.rand(4)
        self.calls = 0

    @torch.jit.export
    def __getstate__(self):
        return (self.w * 2, self.training)

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = state[0] / 2
        self.training = state[1]
        self.calls = 7

    def forward(self, x):
        return x * self.w + float(self.calls)


class GivesAny(nn.Module):
    def forward(self, x, which: bool = False) -> Any:
        if which:
            return x.size(0)
        return x + 1


class Hands(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = GivesAny()

    def forward(self, x) -> Any:
        return self.inner(x)


class Point(NamedTuple):
    x: Tensor
    y: Tensor


class GivesPoint(nn.Module):
    def forward(self, x):
        return Point(x + 1, x * 2)


class UsesPoint(nn.Module):
    """The root gives a plain tensor, so that every format can hold it."""

    def __init__(self):
        super().__init__()
        self.inner = GivesPoint()

    def forward(self, x):
        p = self.inner(x)
        return p.x + p.y


class WithConstants(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Leaf()
        self.names: Dict[str, int] = {"cat": 1, "dog": 2}

    def forward(self, x):
        y = self.a(x) + torch.tensor([0.5, 0.25, 0.125, 1.0])
        return y * float(self.names["dog"])


class Identifiers(nn.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "größe", Leaf())
        setattr(self, "层", Leaf())

    def forward(self, x):
        return self.größe(x) + self.层(x)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Leaf()
        self.register_buffer("s", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.a(x) + torch.sparse.mm(self.s, torch.ones(4, 1)).sum()


def saved(module):
    out = io.BytesIO()
    torch.jit.save(module, out)
    return out.getvalue()


def loaded(data):
    return torch.jit.load(io.BytesIO(data))


def rewritten(data, change):
    """The archive with the bytes of each entry as `change(name, bytes)` gives them."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for entry in source.infolist():
            target.writestr(zipfile.ZipInfo(entry.filename), change(entry.filename, source.read(entry)))
    return out.getvalue()


class ReportsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(12)
        cls.server = t.Server().start()
        cls.addClassCleanup(cls.server.__exit__)

    def lower(self, model, targets, *flags, args=(X,), **named):
        return judge.Lowered(self.server, model, args, targets, *flags, **named)

    def refused(self, reason, data, targets, formats="pt,ptl,ff"):
        """The message of the refusal of a model's bytes."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.pt")
            with open(path, "wb") as file:
                file.write(data)
            result = self.server.lower(path, targets, os.path.join(folder, "out"), formats=formats)
        code, got, message = result.error()
        self.assertEqual(got, reason, message)
        return message

    # ---- names
    def test_classes_of_one_name_that_are_not_lowered_stay_apart(self):
        self.lower(Two(Two(plus(), Leaf()), Two(times(), Leaf())), ["a.b"])
        self.lower(Two(Two(plus(), Leaf()), Two(times(), Leaf())), ["a.a", "b.a"])

    def test_two_files_with_colliding_types_under_one_parent(self):
        one, other = loaded(saved(torch.jit.script(plus()))), loaded(saved(torch.jit.script(times())))
        self.lower(Two(one, other), ["a"])
        self.lower(Two(one, other), ["a", "b"])
        first = self.lower(Two(Leaf(), Leaf()), ["a"])
        second = self.lower(Two(Leaf(), Leaf()), ["b"])
        together = Two(torch.jit.load(first.files["pt"]), torch.jit.load(second.files["pt"]))
        self.lower(together, ["a.b"])

    def test_traced_saved_loaded_and_copied(self):
        traced = torch.jit.trace(Two(Leaf(), Leaf()).eval(), X)
        model = copy.deepcopy(loaded(saved(traced)))
        lowered = self.lower(model, ["a", "b"])
        again = copy.deepcopy(torch.jit.load(lowered.files["pt"]))
        judge.same(judge.run(loaded(saved(again)), "forward", (X,)), judge.run(model, "forward", (X,)))

    def test_function_called_like_its_module(self):
        def leaf(x):
            return x * 5

        class Calls(nn.Module):
            def __init__(self):
                super().__init__()
                self.leaf = Leaf()

            def forward(self, x):
                return self.leaf(leaf(x))
        self.lower(Two(Calls(), Calls()), ["a.leaf", "b"])

    def test_identifiers_beyond_ascii(self):
        model = torch.jit.script(Identifiers().eval())
        try:
            loaded(saved(model))
        except RuntimeError:
            # What PyTorch itself cannot read back is refused as such, not lowered into the same.
            self.refused("MODEL_CORRUPT", saved(model), ["größe"])
        else:
            self.lower(model, ["größe"])

    def test_names_of_values_with_dots(self):
        traced = torch.jit.trace(nn.Sequential(Leaf(), nn.Sequential(Leaf(), Leaf())).eval(), X)
        self.assertRegex(str(traced.inlined_graph), r"%\w+\.\d+ : ")
        self.lower(traced, ["0", "1.1"])

    # ---- lowering
    def test_any_as_a_result(self):
        self.lower(Hands(), ["inner"], formats=("pt",))

    def test_thousands_of_layers(self):
        wide = nn.Sequential(*[nn.Identity() if i % 100 else Leaf() for i in range(2000)])
        self.lower(wide, ["0", "1000", "1900"], formats=("pt",))

    # ---- serialisation
    def test_setstate_of_the_model_itself(self):
        self.lower(Two(WithState(), Leaf()), ["b"])

    def test_setstate_of_what_is_lowered(self):
        self.lower(Two(WithState(), Leaf()), ["a", "b"])

    def test_named_tuples_within_a_model(self):
        # PyTorch's flatbuffers have no place for the type of what `inner` hands on.
        self.lower(UsesPoint(), ["inner"], formats=("pt", "ptl"))
        self.refused("UNSUPPORTED_BY_FORMAT", saved(torch.jit.script(UsesPoint())), ["inner"], "ff")
        self.lower(UsesPoint(), ["."])

    def test_named_tuples_as_results_are_refused_where_they_cannot_be_read(self):
        message = self.refused("UNSUPPORTED_BY_FORMAT", saved(torch.jit.script(GivesPoint())), ["."])
        self.assertIn("NamedTuple", message)

    def test_saving_again_and_again_neither_grows_nor_changes(self):
        lowered = self.lower(WithConstants(), ["a"])
        with open(lowered.files["pt"], "rb") as file:
            first = saved(loaded(file.read()))
        again = first
        for _ in range(4):
            again = saved(loaded(again))
        self.assertEqual(len(again), len(first))
        judge.same(judge.run(loaded(again), "forward", (X,)),
                   judge.run(lowered.original, "forward", (X,)))

    def test_optimised_for_inference(self):
        class Convolve(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Conv2d(3, 4, 3)

            def forward(self, x):
                return torch.relu(self.a(x))
        def frozen():
            return torch.jit.freeze(torch.jit.script(Convolve().eval()))
        data = saved(torch.jit.optimize_for_inference(frozen()))
        # PyTorch saves the prepacked constants without their values.
        with self.assertRaises(RuntimeError):
            loaded(data)
        self.refused("MODEL_CORRUPT", data, ["."])
        self.lower(frozen(), ["."], args=(torch.rand(1, 3, 8, 8),))

    def test_sparse_buffers(self):
        self.lower(Sparse(), ["a"], formats=("pt",))

    def test_constants_from_a_gpu_are_read_on_a_host_without_one(self):
        def to_gpu(name, data):
            if name.endswith(".pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            return data
        data = rewritten(saved(torch.jit.script(WithConstants().eval())), to_gpu)
        self.assertIn(b"cuda:0", data)
        with self.assertRaises(RuntimeError):
            loaded(data)
        self.lower(torch.jit.load(io.BytesIO(data), map_location="cpu"), ["a"])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.pt")
            with open(path, "wb") as file:
                file.write(data)
            result = self.server.lower(path, ["a"], os.path.join(folder, "out"))
            self.assertEqual(result.code, 0, result.err)
            got = judge.run(judge.load(os.path.join(folder, "out", "m.lowered.ptl")), "forward", (X,))
        judge.same(got, judge.run(torch.jit.load(io.BytesIO(data), map_location="cpu"), "forward", (X,)))

    def test_unknown_classes_are_all_named(self):
        def add_classes(name, data):
            if name.endswith(".py") and b"class Two" in data:
                data = data.replace(b"  training : bool\n",
                                    b"  training : bool\n  p : __torch__.torch.classes.acme.Packer\n"
                                    b"  q : __torch__.torch.classes.acme.Queue\n", 1)
            return data
        data = rewritten(saved(torch.jit.script(Two(Leaf(), Leaf()).eval())), add_classes)
        message = self.refused("MISSING_CLASSES", data, ["a"])
        self.assertIn("acme.Packer", message)
        self.assertIn("acme.Queue", message)


class TableTest(unittest.TestCase):
    """docs/reports.md."""

    def test_every_test_that_the_table_names_exists(self):
        tests = set()
        for folder, _, files in os.walk(os.path.join(t.SOURCE, "test")):
            for name in files:
                with open(os.path.join(folder, name), "rb") as file:
                    text = file.read().decode("utf-8", "replace")
                if name.endswith(".cc"):
                    tests |= {"%s.%s" % found for found in
                              re.findall(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", text, re.M)}
                elif name.endswith("_test.py"):
                    tests |= {"%s.%s" % (name[:-3], found)
                              for found in re.findall(r"^    def (test_\w+)", text, re.M)}
        with open(os.path.join(t.SOURCE, "docs", "reports.md"), encoding="utf-8") as file:
            rows = [line.split("|")[1:4] for line in file if re.match(r"\| [\w-]+#\d", line)]
        self.assertGreater(len(rows), 45)
        for report, _, cell in rows:
            named = re.findall(r"\b([A-Z]\w+\.[A-Z]\w+|\w+_test\.test_\w+)", cell)
            self.assertTrue(named or "none: " in cell, report)
            self.assertEqual([name for name in named if name not in tests], [], report)


if __name__ == "__main__":
    unittest.main()
