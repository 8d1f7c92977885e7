"""Compiles kernels to PTX, one JSON request per line. `emit.py` runs it as a script, without Triton's interpreter.

A request names a module's file, its kernel, and how the just-in-time compiler would specialise it. The answer is the
PTX and the bytes of shared memory, or the error. `ptxas` is left out, because only PTX is needed.
"""

import json
import sys
import types
from pathlib import Path

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)


def without_machine_code(*asked):
    """Asked without arguments, what distinguishes such builds in a cache."""
    if not asked:
        return "ptx", "ptx"
    asked[1]["cubin"] = lambda source, metadata: b""
    return None


def launchers_only():
    """What generated modules need of torch to be imported, which takes seconds itself: kernels use nothing of it."""
    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(hip=None)
    return torch


def module(path, known={}):  # noqa: B006
    if path not in known:
        known[path] = types.ModuleType(f"module_{len(known)}")
        known[path].__file__ = path
        sys.modules[known[path].__name__] = known[path]
        exec(compile(Path(path).read_text(), path, "exec"), known[path].__dict__)
    return known[path]


def answer(path, kernel, signature, constants, aligned, options):
    function = getattr(module(path), kernel)
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    made = triton.compile(ASTSource(function, signature, constants, attributes), target=TARGET, options=options)
    return {"ptx": made.asm["ptx"], "shared": made.metadata.shared}


def main():
    knobs.runtime.add_stages_inspection_hook = without_machine_code
    sys.modules["torch"] = launchers_only()
    for line in sys.stdin:
        try:
            found = answer(**json.loads(line))
        except Exception as error:  # the caller's to raise
            found = {"error": f"{type(error).__name__}: {error.__cause__ or error}"}
        print(json.dumps(found), flush=True)


main()
