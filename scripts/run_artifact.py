"""Runs a model and its lowered artifacts on the same inputs and compares the outputs.

    /usr/bin/python3 scripts/run_artifact.py --backend-lib LIB --inputs INPUTS.pt MODEL.pt ARTIFACT...

INPUTS.pt is torch.save of a tuple of arguments. Artifacts ending in .pt are loaded as TorchScript,
.ptl and .ff by the lite interpreter. Exit status 1 if any output differs.
"""
import argparse
import sys

import torch
from torch.jit.mobile import _load_for_lite_interpreter


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors(item)]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors(item)]
    return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend-lib", required=True)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("model")
    parser.add_argument("artifacts", nargs="+")
    args = parser.parse_args()

    torch.ops.load_library(args.backend_lib)
    inputs = torch.load(args.inputs)
    with torch.no_grad():
        want = tensors(torch.jit.load(args.model)(*inputs))
    same = True
    for path in args.artifacts:
        load = torch.jit.load if path.endswith(".pt") else _load_for_lite_interpreter
        with torch.no_grad():
            got = tensors(load(path)(*inputs))
        equal = len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want))
        same &= equal
        first = ", ".join("%.6f" % v for v in got[0].flatten()[:4].tolist())
        print("%-28s %s   [%s, ...]" % (path.rsplit("/", 1)[-1],
                                        "equals the original" if equal else "DIFFERS", first))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
