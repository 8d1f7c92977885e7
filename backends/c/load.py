"""Calls a generated C file. Each combination of dtypes and layout has a shared library, built on first use."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fibration.backends.c.build import build, compiler
from fibration.backends.c.emit import LACKING, dtype_of
from fibration.compiler.arguments import FLOATS, INTEGER, REAL, Argument, Signature, signature
from fibration.compiler.plan import Plan
from fibration.errors import BackendError
from fibration.runtime.batch import Batch, Outputs, Run
from fibration.runtime.calling import Binding, Launch

STORAGE = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
PASSED = {INTEGER: ctypes.c_int64, REAL: ctypes.c_double}  # by value; the others are pointers


@dataclass
class _Ready:
    """The arguments for one index: pointers and numbers that no call changes; and functions by what calls vary."""

    values: Mapping[str, object]  # keeps the tensors alive as long as the pointers to them
    passed: list[object]
    functions: dict[tuple[object, ...], dict[str, Any]] = field(default_factory=dict)


def load(name: str, source: str, plans: Mapping[str, Plan]) -> Run:
    """The function that runs batches through a generated file. Raises BackendError without a C compiler."""
    compiler()
    signatures = {k: signature(plan) for k, plan in plans.items()}
    callers = {k: Binding(plan, signatures[k].arguments) for k, plan in plans.items()}
    moving = {k: [(i, a.name) for i, a in enumerate(c.arguments) if a in c.of_call] for k, c in callers.items()}
    floats = {k: [a.name for a in c.arguments if a.holds == FLOATS] for k, c in callers.items()}
    built: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Any]] = {}

    def functions(function: str, call: Launch) -> dict[str, Any]:
        plan, arguments = plans[function], signatures[function].arguments
        defines = variant(plan, signatures[function], {**call.bound.values, **call.values}, call)
        key = (function, tuple(defines.items()))
        if key not in built:
            others = {f"WITHOUT_{k}": "1" for k in plans if k != function}
            library = _open(build(source, {**defines, **others}))
            named = [name for name, section in plan.functions(function).items() if section]
            built[key] = {name: _function(library, name, arguments) for name in named}
        return built[key]

    def ready(function: str, call: Launch) -> _Ready:
        values = call.bound.values
        return _Ready(values, [_pass(values.get(a.name)) for a in callers[function].arguments])

    def run(function: str, batch: Batch) -> Outputs:
        index = batch.index
        if index.device.type != "cpu":
            raise BackendError(
                f"operator '{name}' is compiled for the C backend, and the index lies on {index.device}",
                required="tensors and index on the CPU",
                remedy="compile it with backend='triton' or backend='torch', or move the batch",
            )
        call = callers[function].bind(batch)
        values = call.values
        made = index.kept((callers[function], "passed"), lambda: ready(function, call))
        dtypes = (getattr(values[f], "dtype", None) for f in floats[function])
        varying = (batch.dtype, call.bound.per_row(batch), *dtypes)
        chosen = made.functions.get(varying)
        if chosen is None:
            chosen = made.functions[varying] = functions(function, call)
        given = made.passed.copy()
        for i, argument in moving[function]:
            given[i] = _pass(values[argument])
        call.perform(function, lambda name: chosen[name](*given, torch.get_num_threads()))
        return call.outputs

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


def variant(plan: Plan, given: Signature, values: Mapping[str, object], call: Launch) -> dict[str, str]:
    """The macros that fit the source to a batch: the dtypes, and the layout of tokens."""
    batch = call.batch
    defines = {"RESULT": STORAGE[batch.dtype], "PER_ROW": str(int(call.bound.per_row(batch)))}
    log_probs = []
    for a in given.arguments:
        tensor = values.get(a.name)
        if a.holds == FLOATS and isinstance(tensor, Tensor):
            defines[dtype_of(a.name)] = STORAGE[tensor.dtype]
            log_probs += [tensor.dtype] if a.kind == "token" and a.key != ("cotangent",) else []
        if a.kind in LACKING:
            defines[f"{LACKING[a.kind]}_{given.layouts[a.key]}"] = str(int(tensor is None))
    # A value that is kept in a result's memory must fit its dtype; coefficients are as wide as the log-probs.
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
