"""Writes tiny models that attack the process that loads them, and one that does not (tiny.pt).

    /usr/bin/python3 test/models/make_hostile.py test/models
"""
import io
import os
import sys
import zipfile
from typing import Tuple

import torch
from torch import Tensor, nn


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(16.0).reshape(4, 4))

    def forward(self, x):
        return torch.relu(torch.matmul(x, self.weight)) + 1


class Tiny(nn.Module):
    """Three modules to lower, two of them of one class."""

    def __init__(self):
        super().__init__()
        self.a = Leaf()
        self.b = Leaf()
        self.c = nn.Linear(4, 4)

    def forward(self, x):
        return self.c(self.b(self.a(x)))


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.ones(4)

    def forward(self, x):
        return x + self.w

    @torch.jit.export
    def __getstate__(self):
        return self.w, self.training


class WritesFile(Stateful):
    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = state[0]
        self.training = state[1]
        torch.save(state[0], "/tmp/lowerd-hostile-model-was-here")


class ReadsFile(Stateful):
    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = torch.from_file("/etc/passwd", False, 16)
        self.training = state[1]


class EatsMemory(Stateful):
    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = state[0]
        self.training = state[1]
        kept = [state[0]]
        while len(kept) > 0:
            kept.append(torch.ones(1 << 22))


class OneAllocation(Stateful):
    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = torch.ones(1 << 46)
        self.training = state[1]


class StartsThreads(Stateful):
    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = state[0]
        self.training = state[1]
        futures = [torch.jit.fork(torch.neg, state[0])]
        while len(futures) > 0:
            futures.append(torch.jit.fork(torch.neg, state[0]))


class EndlessForward(Stateful):
    """Never comes to an end when it is run, as it is on sample inputs."""

    def forward(self, x):
        i = 0
        while i >= 0:
            i = (i + 1) % 1000
        return x

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = state[0]
        self.training = state[1]


class EndlessWhenSavedAgain(nn.Module):
    """Counts how often it has been copied and saved, so that it runs as it should when its own
    outputs are computed, and only the artifacts never come to an end."""

    def __init__(self):
        super().__init__()
        self.saves = 0

    def forward(self, x):
        i = 0
        while self.saves > 2 and i >= 0:
            i = (i + 1) % 1000
        return x

    @torch.jit.export
    def __getstate__(self):
        self.saves += 1
        return self.saves, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[int, bool]):
        self.saves = state[0]
        self.training = state[1]


def deep_source():
    """tiny.pt with an expression nested so deeply that a recursive parser overflows its stack."""
    original = io.BytesIO()
    torch.jit.save(torch.jit.script(Tiny().eval()), original)
    original.seek(0)
    out = io.BytesIO()
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".py"):
                depth = 400_000
                data += b"\ndef deep(x: int) -> int:\n  return " + b"(" * depth + b"x" + b")" * depth
                data += b"\n"
            new.writestr(entry.filename, data)
    return out.getvalue()


def main(folder):
    torch.manual_seed(1)
    torch.jit.script(Tiny().eval()).save(os.path.join(folder, "tiny.pt"))
    for cls in (WritesFile, ReadsFile, EatsMemory, OneAllocation, StartsThreads, EndlessForward,
                EndlessWhenSavedAgain):
        name = "hostile_" + "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__)[1:]
        model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), cls()).eval())
        model.save(os.path.join(folder, name + ".pt"))
    torch.save((torch.ones(1, 4),), os.path.join(folder, "tiny.inputs.pt"))
    with open(os.path.join(folder, "hostile_deep_source.pt"), "wb") as file:
        file.write(deep_source())


if __name__ == "__main__":
    main(sys.argv[1])
