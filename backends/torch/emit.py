"""Writes a schedule as one standalone, readable torch module.

The module computes in float64, whatever the inputs are, because this backend is the reference. Results are rounded
once, at the end.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fibration.backends.bodies import Language, call
from fibration.backends.vectors import constant, function, statement
from fibration.compiler.fuse import sweeps
from fibration.compiler.ir import Const, Mix, Node, Quantile, Scan
from fibration.compiler.plan import Collective, Spread
from fibration.compiler.program import Program
from fibration.compiler.schedule import Schedule, Step, schedule, schedule_spread
from fibration.errors import BackendError
from fibration.runtime import quantiles
from fibration.runtime import scans as sums_in_order

# One row per scalar operator of the IR, except `select`.
OPERATORS: Mapping[str, str] = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
    "stop": "{}.detach()", "exp": "torch.exp({})",
    "log": "torch.log({})", "expm1": "torch.expm1({})", "log1p": "torch.log1p({})",
    "tanh": "torch.tanh({})", "sigmoid": "torch.sigmoid({})", "sqrt": "torch.sqrt({})",
    "softplus": "torch.nn.functional.softplus({}, threshold=40.0)", "atan": "torch.atan({})",
    "lt": "{} < {}", "le": "{} <= {}", "and": "{} & {}", "or": "{} | {}", "not": "~{}",
}  # fmt: skip
# Words that the skeleton uses. No value of a program has one as its name.
SKELETON_WORDS = """
torch math Tensor Fibre NamedTuple fibre push pull spread where inputs over collect quantile Order ordered orders scan
""".split()
RESERVED = frozenset({*keyword.kwlist, *dir(builtins), *SKELETON_WORDS})

SKELETON = '''\
{header}
"""How to call these functions, without the library that wrote them.

`inputs` maps each name of a function's docstring to a float64 vector over the stratum in brackets: one number per
unmasked token for `[token]`, one number for `[batch]`. `count_X_over_Y` is the number of X elements of each Y element.
`over[X, Y]` is `fibre(parent, n)`: `parent[i]` is the Y element that X element i belongs to, and `n` is the number of
Y elements. For Y = batch, `parent` is all zeros and `n` is 1. Coefficients are a vector over the unmasked tokens.
{orders}"""

from __future__ import annotations

import math
{imports}from typing import NamedTuple

import torch
from torch import Tensor


class Fibre(NamedTuple):
    """The map from source elements to target elements: `parent[i]` is the target of source element `i`.

    `order` sorts the sources by target (None if they are sorted). `offsets[b]:offsets[b + 1]` is the fibre of `b`.
    """

    parent: Tensor  # int64 [source]
    order: Tensor | None  # int64 [source]
    offsets: Tensor  # int64 [target + 1]


def fibre(parent: Tensor, targets: int) -> Fibre:
    """Returns the fibration with this parent per source element, and `targets` target elements."""
    sizes = torch.bincount(parent, minlength=targets)
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    is_sorted = bool((parent[1:] >= parent[:-1]).all())
    return Fibre(parent, None if is_sorted else torch.argsort(parent, stable=True), offsets)


def push(x: Tensor, f: Fibre, reduce: str = "sum") -> Tensor:
    """Sums (or takes the maximum) over every fibre, in a fixed order: [source] -> [target]."""
    x = x if f.order is None else x[f.order]
    start = 0.0 if reduce == "sum" else float("-inf")
    return torch.segment_reduce(x.contiguous(), reduce, offsets=f.offsets, initial=start, unsafe=True)


def pull(x: Tensor, f: Fibre) -> Tensor:
    """Gives every source element the value of its target: [target] -> [source]."""
    return x[f.parent]


def spread(x: Tensor, f: Fibre) -> Tensor:
    """Gives every source element the value of the batch, as a view: [1] -> [source]."""
    return x.expand(f.parent.shape[0])


def where(condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
    """torch.where that keeps two constants in float64."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = torch.full((), a, dtype=torch.float64, device=condition.device)
    return torch.where(condition, a, b)

{quantile}{scan}{functions}'''
ORDERS = """\
`orders[Y, X]` is `ordered(order, offsets, longest)`. `order[offsets[b]:offsets[b + 1]]` are the X elements of Y element
b in order (None if they are numbered in order), and `longest` is the largest number of them. X elements of several
strata are numbered one stratum after another.
"""
# The source of the functions for quantiles and sums in order. Modules that use them contain a copy.
QUANTILE, SCAN = (Path(str(module.__file__)).read_text().split("\n\n\n", 1)[1] for module in (quantiles, sums_in_order))


def plan(program: Program, rows: str, spread: Spread | None = None) -> Schedule:
    """The schedule of a program: one vector after the other."""
    return schedule(program, RESERVED) if spread is None else schedule_spread(sweeps(program, rows, RESERVED, spread))


def emit(header: str, schedules: Mapping[str, Schedule], titles: Mapping[str, str]) -> str:
    """The source of a module with one function per schedule. `header` is a comment block."""
    functions = "\n".join(_function(name, s, titles[name]) for name, s in schedules.items())
    imports = "from collections.abc import Callable\n" if any(s.collectives for s in schedules.values()) else ""
    kinds = {type(n) for s in schedules.values() for n in s.program.nodes()}
    text = SKELETON.replace("{imports}", imports).replace("{functions}", functions)
    text = text.replace("{quantile}", f"\n{QUANTILE}\n" if Quantile in kinds else "")
    scans = f"\n{SCAN}\n" if Scan in kinds else ""
    text = text.replace("{scan}", scans).replace("{orders}", ORDERS if scans else "")
    return text.replace("{header}", header.rstrip())  # last, because the header is free text


def _function(name: str, schedule: Schedule, title: str) -> str:
    lines = [line for step in schedule.steps for line in _step(step, schedule)]
    more = ", orders: dict[tuple[str, ...], Order]" if schedule.program.orders else ""
    more += ", collect: Callable[[int, list[Tensor]], list[Tensor]]" if schedule.collectives else ""
    return function(name, title, schedule, lines, "Tensor", more)


def _step(step: Step | Collective, schedule: Schedule) -> list[str]:
    if isinstance(step, Collective):
        read, together = (", ".join(schedule.names[n] for n in nodes) for nodes in (step.reads, step.values))
        return [f"    [{together}] = collect({schedule.collectives.index(step)}, [{read}])"]
    lines = statement(step, schedule, LANGUAGE, partial(_value, schedule))
    return [*lines, f"    del {', '.join(step.dead)}"] if step.dead else lines


def _value(schedule: Schedule, node: Node, operands: list[str]) -> str:
    given = schedule.program.given
    if isinstance(node, Const):
        for like in schedule.program.inputs[:1]:  # made on the inputs' device, not copied there
            return f"inputs[{given[like]!r}].new_full((1,), {constant(node.value)})"
        return f"torch.full((1,), {constant(node.value)}, dtype=torch.float64)"
    if isinstance(node, Mix):
        return f"inputs[{given[node.matrix]!r}]{'.T' if node.transposed else ''} @ {operands[0]}"
    if isinstance(node, Quantile):
        fibres = [f"over[{source!r}, {node.target!r}]" for source in node.sources]
        parents = ", ".join(f"{f}.parent" for f in fibres)
        targets = f"len({fibres[0]}.offsets) - 1"
        return f"quantile([{', '.join(operands[:-1])}], [{parents}], {targets}, {operands[-1]})"
    if isinstance(node, Scan):
        lengths = ", ".join(f"len(over[{source!r}, {node.target!r}].parent)" for source in node.sources)
        into = f"{node.sources.index(node.into)}, orders[{', '.join(map(repr, node.order))}]"
        return f"scan([{', '.join(operands[:-1])}], [{lengths}], {into}, {operands[-1]}, {node.forward})"
    raise BackendError(f"the torch backend cannot emit {type(node).__name__}")


LANGUAGE = Language("torch", OPERATORS, constant, partial(call, "where"))
