"""The same request gives the same bytes: whatever runs beside it, before it, or stops in the middle.

200 different jobs on models of every kind run on one worker in order, then on two workers, shuffled, at
once and with a restart in the middle. No result comes from the cache. LOWERD_SEED picks another mix.
"""
import collections
import io
import os
import random
from typing import Dict, NamedTuple
import unittest

import torch
from torch import Tensor, nn

import farm as f
import lowerd_testing as t

JOBS = 200
SEED = int(os.environ.get("LOWERD_SEED", "20261202"))
TEST_BACKENDS = os.path.join(t.LIB, "liblowerd_backend_test.so")
PT, PTL, FF = f.FORMATS


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.l(x)) + 0.25

    @torch.jit.export
    def encode(self, x, k: int = 3):
        return self.l(x) * float(k)


class Sum(nn.Module):
    """All that backend test_compiler can do."""

    def forward(self, x, y):
        return x + y


class Chain(nn.Module):
    """Instances of one class, some of them shared, others in containers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Leaf(), Leaf()
        self.again = self.a
        self.blocks = nn.ModuleList(Leaf() for _ in range(3))
        self.sum = Sum()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        x = self.b(self.a(x)) + self.again(x)
        for block in self.blocks:
            x = block(x)
        return self.sum(x, x)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Chain(), Chain()
        self.sum = Sum()

    def forward(self, x: Tensor) -> Dict[str, Tensor]:
        return {"left": self.left(x), "right": self.right(x), "sum": self.sum(x, x)}


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x):
        x = self.b(self.a(x))
        for block in self.blocks:
            x = block(x)
        return x


class Model(NamedTuple):
    data: bytes
    # Without overlaps.
    paths: list
    # Selectors that match several modules.
    globs: list
    types: list
    sums: list
    # With method `encode`.
    coders: list
    example: Tensor


def saved(module):
    out = io.BytesIO()
    torch.jit.save(module, out)
    return out.getvalue()


def models():
    torch.manual_seed(3)
    x, image = torch.rand(2, 4), torch.rand(1, 3, 12, 12)
    leaf = "__torch__.Leaf"
    chain, nested, images = Chain().eval(), Nested().eval(), Convolutions().eval()
    blocks = ["a", "b", "blocks.0", "blocks.1", "blocks.2"]
    return [
        Model(saved(torch.jit.script(chain)), blocks, ["blocks.*", "[ab]"], [leaf], ["sum"], blocks, x),
        # The trace calls the shared `a` by two methods, so that it cannot be lowered by one.
        Model(saved(torch.jit.trace(chain, x)), blocks[1:], ["blocks.[02]"], [], [], [], x),
        Model(saved(torch.jit.script(nested)), ["left.a", "left.blocks.1", "right.b", "right.blocks.2"],
              ["**.a", "right.*.?"], [leaf], ["left.sum", "right.sum", "sum"], ["left.a", "right.b"], x),
        Model(saved(torch.jit.script(images)), blocks, ["blocks.*"],
              ["__torch__.torch.nn.modules.conv.Conv2d"], [], [], image),
        Model(saved(torch.jit.freeze(torch.jit.script(images))), [""], [], [], [], [], image),
    ]


class Jobs:
    """`JOBS` different requests; the same for one seed. Uploading is a part of making them."""

    def __init__(self):
        rng = random.Random(SEED)
        self.blobs = []
        self.seen = collections.Counter()
        self.requests = []
        self.models = models()
        while len(self.requests) < JOBS:
            self.requests.append(self.request(rng, len(self.requests)))

    def blob(self, value):
        out = io.BytesIO()
        torch.save(value, out)
        self.blobs.append(out.getvalue())
        return f.digest(self.blobs[-1])

    def spec(self, rng, number):
        value = f.lowering.Value()
        kind = rng.randrange(4)
        if kind == 0:
            value.string = "job %d" % number
        elif kind == 1:
            entry = value.dict.entries.add()
            entry.key.string, entry.value.int = "job", number
        elif kind == 2:
            value.list.values.add().double = number + 0.5
        else:
            value.tensor.CopyFrom(self.blob(torch.full((3,), float(number))))
        return value

    def target(self, rng, number, backend, methods=("forward",), **selector):
        return f.lowering.Target(backend=backend, **selector, methods=[
            f.lowering.Method(name=m, compile_spec=self.spec(rng, number)) for m in methods])

    def request(self, rng, number):
        model = rng.choice(self.models)
        formats = rng.sample(f.FORMATS, rng.randint(1, 3))
        kind = rng.choice(("paths", "paths", "glob", "type", "sums", "methods", "away", "plain"))
        if kind == "glob" and model.globs:
            targets = [self.target(rng, number, "reference", path_glob=rng.choice(model.globs))]
        elif kind == "type" and model.types:
            targets = [self.target(rng, number, "reference", original_type=rng.choice(model.types))]
        elif kind == "sums" and model.sums:
            targets = [self.target(rng, number, "test_compiler", path=p)
                       for p in rng.sample(model.sums, rng.randint(1, len(model.sums)))]
            targets.append(self.target(rng, number, "reference", path=rng.choice(model.paths)))
        elif kind == "methods" and model.coders:
            targets = [self.target(rng, number, "reference", ("forward", "encode"),
                                   path=rng.choice(model.coders))]
        else:
            kind = kind if kind in ("away", "plain") else "paths"
            backend = {"away": "test_unavailable", "plain": "test_plain"}.get(kind, "reference")
            if kind == "plain":
                # A module as payload: there is no bytecode for it.
                formats = [PT]
            chosen = rng.sample(model.paths, rng.randint(1, len(model.paths)))
            targets = [self.target(rng, number, backend, path=p) for p in chosen]
        self.seen[kind] += 1
        request = f.lowering.LowerModelRequest(
            model=f.digest(model.data), targets=targets, formats=formats,
            debug_info=rng.random() < 0.3, artifact_stem="job-%d" % number,
            cache_policy=f.lowering.BYPASS)
        if rng.random() < 0.3:
            self.blobs.append(b"note %d" % (number % 7))
            request.extra_files["note.txt"].CopyFrom(f.digest(self.blobs[-1]))
        if rng.random() < 0.2:
            request.sample_inputs.add().inputs.CopyFrom(self.blob((model.example,)))
        return request

    def upload(self, farm):
        for data in [model.data for model in self.models] + self.blobs:
            farm.upload(data)


def server(workers):
    return t.Server("--backend-lib", t.BACKEND_LIBRARY, "--backend-lib", TEST_BACKENDS, workers=workers)


def shuffled_with_a_restart(jobs, order):
    """Results by index. Half of the jobs wait when the server is killed, two of them in work."""
    out = {}
    with server(workers=2) as second:
        with f.Farm(second.address) as farm:
            jobs.upload(farm)
            names = {i: farm.lowering.LowerModel(jobs.requests[i]).name for i in order}
            for i in order[:JOBS // 2]:
                farm.wait(names[i])
        second.kill()
        second.start()
        with f.Farm(second.address) as farm:
            for i in order:
                out[i] = f.result(farm.wait(names[i]))
            return out, farm.names()


class ReproducibilityTest(unittest.TestCase):
    def test_200_mixed_jobs_give_the_same_bytes_in_any_order_and_across_a_restart(self):
        print("seed %d" % SEED)
        jobs = Jobs()
        for kind in ("paths", "glob", "type", "sums", "methods", "away", "plain"):
            self.assertGreater(jobs.seen[kind], 3, jobs.seen)
        with server(workers=1) as first, f.Farm(first.address) as farm:
            jobs.upload(farm)
            expected = [f.result(farm.wait(farm.lowering.LowerModel(request).name))
                        for request in jobs.requests]
            names = farm.names()
        order = list(range(JOBS))
        random.Random(SEED + 1).shuffle(order)
        results, names_again = shuffled_with_a_restart(jobs, order)
        for i in range(JOBS):
            self.assertEqual(results[i], expected[i], "job %d: %s" % (i, jobs.requests[i]))
        self.assertEqual(names_again, names)
        # Different requests gave different files: it is not one answer 200 times.
        self.assertEqual(len({result["manifest"] for result in expected}), JOBS)


if __name__ == "__main__":
    unittest.main()
