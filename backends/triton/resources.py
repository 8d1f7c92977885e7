"""Compiles the kernels of a hierarchy ahead of time for one architecture, and lists the resources of each kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fibration.backends.triton.aot import CompiledKernel, Constexpr, KernelRequest, compile_kernels
from fibration.backends.triton.kernels import kernels
from fibration.backends.triton.writer import MEMORY, Kernel
from fibration.compiler.arguments import (
    FLOATS,
    HOLDS,
    INTEGER,
    INTEGERS,
    REAL,
    REALS,
    RESULTS,
    WORKSPACE,
    fill_of,
    for_each,
)
from fibration.compiler.plan import Plan

SHAPE = (2, 64, 1)  # BLOCK_R, BLOCK_T, warps: the value of `shape_for` for rows of a few hundred tokens
COLUMNS = 16  # the sources over one target that are summed at a time
# Triton's types of arguments. A real number is no argument but a constant of the kernel.
TYPES = for_each("Triton types", HOLDS, {
    INTEGER: "i32", REAL: "", INTEGERS: "*i64", REALS: "*fp64", WORKSPACE: "*fp64", FLOATS: "*fp32", RESULTS: "*fp32",
})  # fmt: skip
# The kernel that finds quantiles, for elements that are in order.
QUANTILE = KernelRequest(
    "digits",
    {
        **{"x": "*fp64", "before": "*i64", "counts": "*i32", "states": "*i64", "least": "*fp64"},
        **dict.fromkeys(("columns", "column", "pieces", "targets", "first", "last"), "i32"),
    },
    {"order": None, "block": 512},
    num_warps=8,
)
# The kernel for sums in order, in both directions.
SCAN = KernelRequest(
    "along",
    {"out": "*fp64", "x": "*fp64", "before": "*i64", "discount": "*fp64", "targets": "i32", "way": "i32"},
    {"order": None, "rows": SHAPE[0], "columns": SHAPE[1]},
    num_warps=SHAPE[2],
)
LACKING = ("positions", "tokens", "by_length", "rows")  # None: adjacent tokens, in order, advantages per token


def compile_all(
    source: str,
    plans: Mapping[str, Plan],
    arch: str,
    programs: Iterable[str] | None = None,
    shape: tuple[int, int, int] = SHAPE,
    filename: str = "kernels.py",
) -> dict[str, tuple[CompiledKernel, ...]]:
    """The kernels of all programs, or of `programs`, for float32 tensors. Raises BackendError."""
    wanted = {name: list(requests(plans, name, shape)) for name in (plans if programs is None else programs)}
    different = {str(r): r for one in wanted.values() for r in one}  # some kernels are the same without metrics
    compiled = compile_kernels(source, [*different.values()], arch=arch, filename=filename)
    made = dict(zip(different, compiled, strict=True))
    return {name: tuple(made[str(r)] for r in one) for name, one in wanted.items()}


def requests(plans: Mapping[str, Plan], program: str, shape: tuple[int, int, int] = SHAPE) -> Iterator[KernelRequest]:
    """The kernels of a program, specialised as its launcher launches them."""
    plan, made = plans[program], kernels(plans, program)
    scan = replace(SCAN, constexprs={"order": None, "rows": shape[0], "columns": shape[1]}, num_warps=shape[2])
    yield from (request for request in (QUANTILE, scan) if any(k.name == request.kernel for k in made))
    for kernel in made:
        if kernel.text:
            yield _request(kernel, shape, {"fill": fill_of(plan), "METRICS": plan.of is None, "WIDE": False})


def _request(kernel: Kernel, shape: tuple[int, int, int], known: dict[str, Constexpr]) -> KernelRequest:
    types = {a.name: TYPES[a.holds] for a in kernel.arguments if a.kind not in LACKING and TYPES[a.holds]}
    rows, columns, warps = shape if "BLOCK_R" in kernel.constants else (0, 0, 8)
    vector = columns % 4 == 0 and rows * columns >= 128 * warps
    if known["METRICS"] and "BLOCK_L" in kernel.constants:
        rows, vector = 1 if columns >= 64 else rows, False
    known |= {"BLOCK_R": rows, "BLOCK_T": columns, "BLOCK_L": 32 * warps, "VECTOR": vector}
    values: dict[str, Constexpr] = {a.name: None for a in kernel.arguments if a.kind in LACKING}
    values |= {c: known.get(c, COLUMNS) for c in kernel.constants}
    return KernelRequest(kernel.name, types | {w: MEMORY[w] for w in kernel.memory}, values, num_warps=warps)
