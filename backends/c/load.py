"""Calls a generated C file. Each combination of dtypes and layout has a shared library, built on first use."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fibration.backends.c.build import build, compiler
from fibration.backends.c.calling import LACKING, is_short, opened, variant
from fibration.compiler.arguments import signature
from fibration.compiler.plan import Plan, computing
from fibration.errors import BackendError
from fibration.runtime.batch import Batch, Index, Run, tensors_of
from fibration.runtime.calling import Binding, Call, Frame, Runner


def load(name: str, source: str, plans: Mapping[str, Plan]) -> Run:
    """The function that runs batches through a generated file. Raises BackendError without a C compiler."""
    compiler()
    signatures = {k: signature(plan) for k, plan in plans.items()}
    bindings = {k: Binding(plan, signatures[k].arguments) for k, plan in plans.items()}
    described = {k: [(a.name, a.kind, a.key) for a in given.arguments] for k, given in signatures.items()}
    computed_by = computing(plans)
    built: dict[tuple[object, ...], dict[str, Any]] = {}
    deciding = {k: [i for i, a in enumerate(b.arguments) if a.kind in (*LACKING, "rows")] for k, b in bindings.items()}
    offsets = {k: [i for i, a in enumerate(b.arguments) if a.kind == "offsets"] for k, b in bindings.items()}

    def functions(program: str, values: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
        plan, arguments, own = plans[program], described[program], computed_by[program]
        read = [values[name].dtype for name, kind, key in arguments if kind == "token" and key != ("cotangent",)]
        wide = torch.float64 in (dtype, *read)
        defines = variant(arguments, values, dtype, torch.float64 if wide else torch.float32)
        defines["METRICS"] = str(int(plan.of is None))
        others = {f"WITHOUT_{k}": "1" for k in computed_by.values() if k != own}
        library = _open(build(source, {**defines, **others}))
        pairs = zip(plan.functions(program), plan.functions(own).items(), strict=True)
        return {name: opened(library, word, arguments) for name, (word, section) in pairs if section}

    def check(index: Index) -> None:
        if index.device.type != "cpu":
            raise BackendError(
                f"operator '{name}' is compiled for the C backend, and the index lies on {index.device}",
                required="tensors and index on the CPU",
                remedy="compile it with backend='triton' or backend='torch', or move the batch",
            )

    def ready(program: str, frame: Frame, batch: Batch) -> Call:
        binding, tensors = bindings[program], tensors_of(batch)
        dtypes = [tensors[called].dtype for _, called in binding.tokens]
        lacks = [frame.values[i] is None for i in deciding[program]]
        read = [tensors[called].dtype for i, called in binding.tokens if binding.arguments[i].kind == "token"]
        short = [is_short(frame.values[i], read) for i in offsets[program]]
        key = (program, frame.empty.dtype, *dtypes, *lacks, *short)
        if key not in built:
            values = {a.name: value for a, value in zip(binding.arguments, frame.values, strict=True)}
            values |= {binding.arguments[i].name: tensors[called] for i, called in binding.tokens}
            built[key] = functions(program, values, frame.empty.dtype)
        chosen = built[key]
        passed = [value.data_ptr() if isinstance(value, Tensor) else value for value in frame.values]

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
