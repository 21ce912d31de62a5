"""Writes a tiny model whose loading never ends: the __setstate__ of its second child loops.

    /usr/bin/python3 test/models/make_endless_setstate.py test/models
"""
import os
import sys
from typing import Tuple

import torch
from torch import Tensor, nn


class Endless(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.ones(4)

    def forward(self, x):
        return x + self.w

    @torch.jit.export
    def __getstate__(self):
        return self.w, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, bool]):
        self.w = state[0]
        self.training = state[1]
        i = 0
        while i >= 0:
            i = (i + 1) % 1000


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = Endless()

    def forward(self, x):
        return self.b(self.a(x))


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.jit.script(Model().eval()).save(os.path.join(sys.argv[1], "endless_setstate.pt"))
