"""Batches spread over ranks: sums that do not depend on which rank has which tokens, and the collectives of a plan.

A float64 sum depends on the order of its terms. So each term of a sum over several ranks is cut into five parts, whole
multiples of the `UNITS`. They are so small that a sum of up to `TOKENS` of them is exact, in any order and on any
hardware (Rump, Ogita and Oishi 2008; Demmel and Nguyen 2013):

    q = (x + M) - M  is x rounded to a multiple of u, where M = 1.5·2^52·u;  x - q is exact, and goes on to the next u

The parts use the same kernels as all other sums. A term beyond `RANGE` becomes NaN, and the output `beyond` counts the
elements with a term beyond it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from fibration.compiler.arguments import GIVEN
from fibration.compiler.diagnostics import lost, nothing
from fibration.compiler.ir import BATCH, Const, Key, Map, Node, Push, Quantile, Scalar, Scan, arg, const, scalar, total
from fibration.compiler.plan import Coarse, Collective, Spread, Stage, Sweep
from fibration.compiler.program import Program

UNITS = (2.0**40, 2.0**10, 2.0**-20, 2.0**-50, 2.0**-80)
RANGE = 2.0**69  # of a term (a ratio of e^47): half of the 2^30 multiples of a unit that make the next larger unit
TOKENS = 2**24  # terms of one element on one rank; the sums of their parts are exact
# The bound of a whole number's absolute value, from the bounds of its operands.
COMBINED: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add, "sub": operator.add, "mul": operator.mul, "select": max,
}  # fmt: skip
SMALL = 2.0**10  # whole numbers up to here add up exactly without parts, in the tokens' precision too
BEYOND = Key("beyond")  # the number of elements with a term out of range


def exact(program: Program, spread: Spread) -> tuple[Program, dict[Push, float]]:
    """`program` with its sums over cut strata split into parts, and the unit of each of these sums."""
    units: dict[Push, float] = {}
    first: dict[str, list[Node]] = {}  # the sums of the largest parts, NaN if a term is out of range
    names: dict[Node, Key] = {}

    def rule(node: Node) -> Node:
        if not isinstance(node, Push) or node.reduce != "sum" or not spread.cuts(node, program.leaves):
            return node
        largest = bound(node.operand)
        if largest is not None and largest <= SMALL:
            units[node] = 1.0
            return node
        sums: list[Node] = [Push(node.source, node.target, part) for part in parts(node.operand)]
        units.update((s, unit) for s, unit in zip(sums, UNITS, strict=True) if isinstance(s, Push))
        first.setdefault(node.target, []).append(sums[0])
        if word := program.names.get(node.operand):
            names.update((s.operands[0], Key(f"{word}_part_{i}")) for i, s in enumerate(sums, 1))
        return total(sums[::-1])  # the smallest first

    made = program.mapped(rule)
    outputs = dict(made.outputs)
    if first:
        outputs[BEYOND] = total([_out_of_range(stratum, sums) for stratum, sums in first.items()])
    return replace(made, outputs=outputs, names={**names, **made.names}).validate(), units


def parts(x: Node) -> list[Node]:
    """Multiples of the `UNITS` that add up to `x`, up to less than the last unit; NaN where `x` is beyond `RANGE`."""
    inside = scalar("and", scalar("le", const(-RANGE), arg(0)), scalar("le", arg(0), const(RANGE)))
    found: list[Node] = []
    for unit in UNITS:
        large = const(1.5 * 2.0**52 * unit)
        rounded = scalar("sub", scalar("add", arg(0), large), large)
        body = rounded if found else scalar("select", inside, rounded, const(float("nan")))
        found.append(Map(body, (x,)))
        x = Map(scalar("sub", arg(0), arg(1)), (x, found[-1]))
    return found


def _out_of_range(stratum: str, sums: list[Node]) -> Node:
    """The number of elements of `stratum` with a sum that is not finite."""
    flag = lost(total([*map(nothing, dict.fromkeys(sums))]))
    return flag if stratum == BATCH else Push(stratum, BATCH, flag)


def bound(node: Node) -> float | None:
    """A bound on the absolute values of a vector of whole numbers or NaN; None if it may have other values."""
    if isinstance(node, Const):
        return _whole(node.value)
    return _bound(node.body, [bound(o) for o in node.inputs]) if isinstance(node, Map) else None


def _bound(body: Scalar, given: list[float | None]) -> float | None:
    if body.op == "arg":
        return given[int(body.value or 0)]
    if body.op == "const":
        return _whole(float(body.value or 0.0))
    if body.op == "sub" and body.args[0] is body.args[1]:
        return 0.0
    if body.op not in COMBINED:
        return None
    a, b = (_bound(part, given) for part in body.args[-2:])
    return None if a is None or b is None else COMBINED[body.op](a, b)


def _whole(value: float) -> float | None:
    return abs(value) if value == value and abs(value) <= SMALL and value == int(value) else None


# ------------------------------------------------------------ when ranks meet


def collected(
    stages: Iterable[Stage], program: Program, spread: Spread, units: Mapping[Push, float]
) -> Iterator[Stage]:
    """The stages, with a collective before each stage that reads values that ranks know in part.

    The collective combines all values of this kind that exist by then. A sweep reads only the elements with tokens on
    this rank; a coarse stage and the caller read every element.
    """
    stages = list(stages)
    read = set(program.outputs.values()).union(*(_coarse_reads(s) for s in stages))
    waiting: dict[Node, None] = {
        n: None for n in program.inputs if n.kind in GIVEN and n.stratum not in program.leaves and n in read
    }

    def together() -> Collective:
        parts = [n for n in waiting if isinstance(n, Push) and spread.cuts(n, program.leaves)]
        whole = [n for n in waiting if n not in parts]
        waiting.clear()
        return Collective(tuple(whole), tuple(parts), {p: units[p] for p in parts if p in units})

    for stage in stages:
        if not waiting.keys().isdisjoint(_coarse_reads(stage) | _cut_reads(stage, spread, program.leaves)):
            yield together()
        made = [n for g in stage.groups for n in g.values] if isinstance(stage, Coarse) else []
        quantiles = tuple(n for n in made if isinstance(n, Quantile))
        scans = tuple(n for n in made if isinstance(n, Scan))
        if any(spread.cuts(n, program.leaves) for n in (*quantiles, *scans)):
            yield Collective((), quantiles=quantiles, scans=scans)
            continue
        yield stage
        if isinstance(stage, Sweep) or (isinstance(stage, Coarse) and quantiles):
            mine = (n for n in stage.saved if n.stratum not in program.leaves)
            waiting |= {n: None for n in mine if n in read or spread.cuts(n, program.leaves)}
    if not waiting.keys().isdisjoint(program.outputs.values()):
        yield together()


def _coarse_reads(stage: Stage) -> set[Node]:
    return {o for g in stage.groups for n in g.values for o in n.operands} if isinstance(stage, Coarse) else set()


def _cut_reads(stage: Stage, spread: Spread, leaves: Collection[str]) -> set[Node]:
    """The sums and maxima over cut strata that a sweep reads directly."""
    steps = stage.steps if isinstance(stage, Sweep) else ()
    return {o for step in steps for n in step.values for o in n.operands if spread.cuts(o, leaves)}
