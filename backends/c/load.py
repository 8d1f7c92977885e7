"""Calls a generated C file. Each combination of dtypes and layout has a shared library, built on first use."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fibration.backends.c.build import build, compiler
from fibration.backends.c.calling import LACKING, STORAGE
from fibration.backends.c.language import dtype_of
from fibration.compiler.arguments import FLOATS, INTEGER, REAL, Argument, Signature, signature
from fibration.compiler.plan import Plan, computing
from fibration.errors import BackendError
from fibration.runtime.batch import Batch, Elements, Run, tensors_of
from fibration.runtime.calling import Binding, Call, Frame, Runner

VECTOR = 64  # bytes of all lanes, for storage.h
PASSED = {INTEGER: ctypes.c_int64, REAL: ctypes.c_double}  # by value; the others are pointers


def load(name: str, source: str, plans: Mapping[str, Plan]) -> Run:
    """The function that runs batches through a generated file. Raises BackendError without a C compiler."""
    compiler()
    signatures = {k: signature(plan) for k, plan in plans.items()}
    bindings = {k: Binding(plan, signatures[k].arguments) for k, plan in plans.items()}
    computed_by = computing(plans)
    built: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, Any]] = {}

    def functions(program: str, values: Mapping[str, object], dtype: torch.dtype, per_row: bool) -> dict[str, Any]:
        plan, arguments, own = plans[program], signatures[program].arguments, computed_by[program]
        defines = variant(plan, signatures[program], values, dtype, per_row)
        key = (program, tuple(defines.items()))
        if key not in built:
            others = {f"WITHOUT_{k}": "1" for k in computed_by.values() if k != own}
            library = _open(build(source, {**defines, **others}))
            pairs = zip(plan.functions(program), plan.functions(own).items(), strict=True)
            built[key] = {name: _function(library, word, arguments) for name, (word, section) in pairs if section}
        return built[key]

    def check(index: Elements) -> None:
        if index.device.type != "cpu":
            raise BackendError(
                f"operator '{name}' is compiled for the C backend, and the index lies on {index.device}",
                required="tensors and index on the CPU",
                remedy="compile it with backend='triton' or backend='torch', or move the batch",
            )

    def ready(program: str, frame: Frame, batch: Batch) -> Call:
        binding, tensors = bindings[program], tensors_of(batch)
        varying = (frame.empty.dtype, frame.per_row, *(tensors[called].dtype for _, called in binding.tokens))
        known = batch.index.kept((binding, "functions"), dict)
        if varying not in known:
            values = {a.name: value for a, value in zip(binding.arguments, frame.values, strict=True)}
            values |= {binding.arguments[i].name: tensors[called] for i, called in binding.tokens}
            known[varying] = functions(program, values, frame.empty.dtype, frame.per_row)
        chosen = known[varying]
        passed = [value.data_ptr() if isinstance(value, Tensor) else value for value in frame.values]
        if frame.is_filled:
            passed = [math.nan if a.kind == "fill" else v for a, v in zip(binding.arguments, passed, strict=True)]

        def call(function: str, holes: list[tuple[int, Tensor]]) -> None:
            arguments = passed.copy()
            for i, tensor in holes:
                arguments[i] = tensor.data_ptr()
            chosen[function](*arguments, torch.get_num_threads())

        return call

    return Runner(bindings, check, ready)


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


def variant(
    plan: Plan, given: Signature, values: Mapping[str, object], dtype: torch.dtype, per_row: bool
) -> dict[str, str]:
    """The macros that fit the source to a batch: the dtypes, and the layout of tokens. `dtype`: that of results."""
    defines = {"RESULT": STORAGE[dtype], "PER_ROW": str(int(per_row)), "METRICS": str(int(plan.of is None))}
    log_probs, sizes = [], []
    for a in given.arguments:
        tensor = values.get(a.name)
        if a.holds == FLOATS and isinstance(tensor, Tensor):
            defines[dtype_of(a.name)] = STORAGE[tensor.dtype]
            log_probs += [tensor.dtype] if a.kind == "token" and a.key != ("cotangent",) else []
            sizes += [tensor.element_size()] if a.kind == "token" else []
        if a.kind in LACKING:
            defines[f"{LACKING[a.kind]}_{given.layouts[a.key]}"] = str(int(tensor is None))
    defines["NARROW"] = str(min(sizes, default=4))
    for a in (a for a in given.arguments if a.kind == "offsets"):
        offsets, lanes = values[a.name], VECTOR // min(sizes, default=4)
        assert isinstance(offsets, Tensor)
        defines[f"SHORT_{given.layouts[a.key]}"] = str(int(bool((offsets.diff() <= lanes).all())))
    # A value that is kept in a result's memory must fit its dtype; coefficients are as wide as the log-probs.
    keeps = any(p.kept for sweep in plan.sweeps for p in sweep.passes)
    wide = dtype == torch.float64 if keeps else torch.float64 in (dtype, *log_probs)
    defines["REAL"] = "f64" if wide else "f32"
    return defines


def _function(library: ctypes.CDLL, name: str, arguments: tuple[Argument, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes = [*(PASSED.get(a.holds, ctypes.c_void_p) for a in arguments), ctypes.c_int]
    function.restype = None
    return function
