"""Calls to a generated C file: one shared library per combination of dtypes and layout, built when first needed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fibration.backends.c.build import build, compiler
from fibration.backends.c.emit import LACKING, dtype_of
from fibration.compiler.arguments import FLOATS, INTEGER, REAL, Argument, Signature, signature
from fibration.compiler.keys import Key
from fibration.compiler.plan import Plan
from fibration.errors import BackendError
from fibration.runtime.batch import Batch, Run
from fibration.runtime.calling import bind, per_row, perform

STORAGE = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
PASSED = {INTEGER: ctypes.c_int64, REAL: ctypes.c_double}  # by value; the others are pointers


def load(name: str, source: str, plans: Mapping[str, Plan]) -> Run:
    """The functions of a generated file. Raises BackendError without a C compiler."""
    compiler()
    signatures = {k: signature(plan) for k, plan in plans.items()}
    built: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Any]] = {}

    def run(function: str, batch: Batch) -> dict[Key, Tensor]:
        if batch.index.device.type != "cpu":
            raise BackendError(
                f"operator '{name}' is compiled for the C backend, and the index lies on {batch.index.device}",
                required="tensors and index on the CPU",
                remedy="compile it with backend='triton' or backend='torch', or move the batch",
            )
        plan, arguments = plans[function], signatures[function].arguments
        values, outputs, work = bind(arguments, plan, batch)
        defines = variant(plan, signatures[function], values, batch)
        key = (function, tuple(defines.items()))
        if key not in built:
            others = {f"WITHOUT_{k}": "1" for k in plans if k != function}
            library = _open(build(source, {**defines, **others}))
            functions = [name for name, section in plan.functions(function).items() if section]
            built[key] = {name: _function(library, name, arguments) for name in functions}
        given = [_pass(values[a.name]) for a in arguments]
        perform(function, plan, batch, work, lambda name: built[key][name](*given, torch.get_num_threads()))
        return outputs

    return run


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"the library '{path}' cannot be loaded",
            required="a file system whose files may be run, and all that the compiler links with",
            found=str(error),
            remedy="set FIBRATION_CACHE to a folder elsewhere, or choose backend='torch'",
        ) from error


def variant(plan: Plan, given: Signature, values: Mapping[str, object], batch: Batch) -> dict[str, str]:
    """The macros that make the source fit a batch: dtypes, and how tokens lie."""
    defines = {"RESULT": STORAGE[batch.dtype], "PER_ROW": str(int(per_row(batch, plan)))}
    log_probs = []
    for a in given.arguments:
        tensor = values.get(a.name)
        if a.holds == FLOATS and isinstance(tensor, Tensor):
            defines[dtype_of(a.name)] = STORAGE[tensor.dtype]
            log_probs += [tensor.dtype] if a.kind == "token" and a.key != ("cotangent",) else []
        if a.kind in LACKING:
            defines[f"{LACKING[a.kind]}_{given.layouts[a.key]}"] = str(int(tensor is None))
    # Where a result keeps values for a while they must fit in, and coefficients are as wide as the log-probs.
    keeps = any(p.kept for sweep in plan.sweeps for p in sweep.passes)
    wide = batch.dtype == torch.float64 if keeps else torch.float64 in (batch.dtype, *log_probs)
    defines["REAL"] = "f64" if wide else "f32"
    return defines


def _function(library: ctypes.CDLL, name: str, arguments: tuple[Argument, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes = [*(PASSED.get(a.holds, ctypes.c_void_p) for a in arguments), ctypes.c_int]
    function.restype = None
    return function


def _pass(value: object) -> object:
    return value.data_ptr() if isinstance(value, Tensor) else value
