"""Loads artifacts with Debian's Python torch and compares what they give with the original."""
import os
import re
import tempfile
import zipfile

import torch
from torch.jit.mobile import _load_for_lite_interpreter

import lowerd_testing as t

torch.set_num_threads(1)
torch.ops.load_library(t.BACKEND_LIBRARY)

MANGLE = re.compile(r"___torch_mangle_\d+\.?")


def same(got, want, where="output"):
    """Raises where structure, container types or values differ."""
    if isinstance(want, torch.Tensor):
        if not isinstance(got, torch.Tensor) or got.dtype != want.dtype or got.shape != want.shape:
            raise AssertionError("%s: %r instead of %r" % (where, got, want))
        if want.is_floating_point():
            torch.testing.assert_close(got, want, msg=where, equal_nan=True)
        elif not torch.equal(got, want):
            raise AssertionError("%s: %r instead of %r" % (where, got, want))
    elif isinstance(want, (list, tuple)):
#A NamedTuple from another load has another Python class of the same name.
        if type(got).__name__ != type(want).__name__ or len(got) != len(want):
            raise AssertionError("%s: %r instead of %r" % (where, got, want))
        for i, (g, w) in enumerate(zip(got, want)):
            same(g, w, "%s[%d]" % (where, i))
    elif isinstance(want, dict):
        if type(got) is not type(want) or list(got) != list(want):
            raise AssertionError("%s: %r instead of %r" % (where, got, want))
        for key in want:
            same(got[key], want[key], "%s[%r]" % (where, key))
    elif type(got) is not type(want) or got != want:
        raise AssertionError("%s: %r instead of %r" % (where, got, want))


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(copied(v) for v in value)
    if isinstance(value, dict):
        return {
k: copied(v) for k, v in value.items()
}
    return value


def demangle(name):
    return MANGLE.sub("", name)


def module_types(module):
    """Path -> qualified type name; "" is the root."""
    out = {}

    def walk(at, path):
        out[path] = at._c.qualified_name
        for name, child in at._modules.items():
            if child is not None:
                walk(child, path + "." + name if path else name)
    walk(module, "")
    return out


def classes_in(path):
    """Qualified names of the classes in the code/ folder of an archive."""
    out = []
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            _, _, name = entry.partition("/")
            if name.startswith("code/") and name.endswith(".py"):
                module = name[len("code/"):-len(".py")].replace("/", ".")
                text = archive.read(entry).decode()
                out += [module + "." + c for c in re.findall(r"^class ([^(:\s]+)", text, re.M)]
    return out


def load(path):
    return torch.jit.load(path) if path.endswith(".pt") else _load_for_lite_interpreter(path)


def run(module, method, args):
    with torch.no_grad():
        if isinstance(module, torch.jit.ScriptModule):
            return getattr(module, method)(*copied(args))
        return module.run_method(method, *copied(args))


class Lowered:
    """One lowering of `model` (scripted or scriptable) through `server`, with all checks that hold for
    every lowering: equal outputs in every format, names that agree, untouched siblings."""

    def __init__(self, server, model, args, targets, *flags, formats=("pt", "ptl", "ff"),
                 methods=("forward",), extra_files=None):
        self.folder = tempfile.TemporaryDirectory(prefix="lowerd-interop-")
        folder = self.folder.name
        path = os.path.join(folder, "m.pt")
        scripted = model if isinstance(model, torch.jit.ScriptModule) else torch.jit.script(model.eval())
        torch.jit.save(scripted, path, _extra_files=extra_files or {})
        self.original = torch.jit.load(path)
        out = os.path.join(folder, "out")
        self.result = server.lower(path, targets, out, *flags, formats=",".join(formats))
        if self.result.code != 0:
            raise AssertionError("lowerctl: exit %d: %s" % (self.result.code, self.result.err))
        self.manifest = t.read_manifest(out)
        self.files = {f: os.path.join(out, "m.lowered." + f) for f in formats}

        for method in methods:
            want = run(self.original, method, args)
            for fmt, file in self.files.items():
                same(run(load(file), method, args), want, "%s of .%s" % (method, fmt))
        self.check_names([p.split("=")[0].strip(".") for p in targets])

    def check_names(self, targets):
        before = module_types(self.original)
        after = module_types(torch.jit.load(self.files["pt"]))
        entries = {}
        for entry in self.manifest["loweredModules"]:
            for path in [entry.get("path", "")] + entry.get("aliases", []):
                entries[path] = entry
        for path in targets:
            entry = entries[path]
            inner = (path + "." if path else "") + "__loweredModule__"
            if (after[path], after[inner]) != (entry["wrapperType"], entry["loweredType"]):
                raise AssertionError("manifest and .pt differ on %s" % path)
            if demangle(entry["loweredType"]) != "torch.jit.LoweredModule.%s.%s" % (
                    entry["backend"], demangle(before[path])):
                raise AssertionError("odd name " + entry["loweredType"])
        lowered = [e["loweredType"] for e in self.manifest["loweredModules"]]
        if len(set(lowered)) != len(lowered):
            raise AssertionError("lowered types are not distinct: %s" % lowered)
        for fmt in self.files:
            if fmt == "ff":
                with open(self.files[fmt], "rb") as file:
                    data = file.read()
                missing = [n for n in lowered if (n + ".__setstate__").encode() not in data]
            else:
                found = classes_in(self.files[fmt])
                missing = [n for n in lowered if found.count(n) != 1]
            if missing:
                raise AssertionError(".%s lacks %s" % (fmt, missing))
        for path, name in before.items():
            if any(path == p or path.startswith(p + ".") or p == "" for p in entries):
                continue
            if demangle(after[path]) != demangle(name):
                raise AssertionError("%s was no target, but is %s" % (path, after[path]))
