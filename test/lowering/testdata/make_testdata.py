#!/usr/bin/python3
"""Writes the files of this folder anew (PyTorch 1.13).

    /usr/bin/python3 make_testdata.py PATH/liblowerd_backend_reference.so

lowered.*: one submodule lowered by PyTorch itself, without any mangled name.
twice.*: two submodules of one class lowered by PyTorch itself, which then writes only one
__setstate__ into the flatbuffer.
"""
import os
import sys
from typing import Dict, List, NamedTuple

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
EXTRA = {"notes.txt": b"hello"}


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


class Child(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.long))

    def forward(self, x):
        return x @ self.weight.t() + torch.tensor([1.0, 2.0])


class Parent(torch.nn.Module):
    names: List[str]
    table: Dict[str, int]

    def __init__(self):
        super().__init__()
        self.a = Child()
        self.b = Child()
        self.names = ["x", "y"]
        self.table = {"k": 1}

    def forward(self, x):
        return self.a(x) + self.b(x) + len(self.names)


class Classes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Child()

    def forward(self, x) -> Pair:
        return Pair(self.a(x), 2)


def path(name):
    return os.path.join(HERE, name)


def save_all(module, stem):
    module.save(path(stem + ".pt"), _extra_files=EXTRA)
    module._save_for_lite_interpreter(path(stem + ".ptl"), _extra_files=EXTRA)
    module._save_for_lite_interpreter(path(stem + ".ff"), _extra_files=EXTRA, _use_flatbuffer=True)


def lowered_child():
    return torch._C._jit_to_backend("reference", torch.jit.script(Child().eval()),
                                    {"forward": ""})


class One(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = lowered_child()
        self.b = Child()

    def forward(self, x):
        return self.a(x) + self.b(x)


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = lowered_child()
        self.b = lowered_child()

    def forward(self, x):
        return self.a(x) + self.b(x)


def main():
    torch.manual_seed(0)
    torch.ops.load_library(sys.argv[1])
    save_all(torch.jit.script(Parent().eval()), "model")
    torch.jit.script(Classes().eval()).save(path("classes.pt"))
    save_all(torch.jit.script(One()), "lowered")
    save_all(torch.jit.script(Both()), "twice")
    torch.save(Parent().state_dict(), path("state_dict.bin"))
    torch.save(Parent().state_dict(), path("state_dict_old.bin"),
               _use_new_zipfile_serialization=False)
    torch.save(Parent(), path("module.bin"))


main()
