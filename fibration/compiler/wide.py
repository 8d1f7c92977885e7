"""Which sums over tokens are in float64: those that a comparison reads, and those that can join them in one pass."""

from __future__ import annotations

from dataclasses import replace

from fibration.compiler.ir import Detach, Map, Node, Push, Scalar
from fibration.compiler.program import PER_TOKEN, Program
from fibration.compiler.reuse import cost

CONDITION_ARGS = frozenset({"lt", "le"})
CHEAP = 12  # the cost of values that may be computed in float64 to save a pass
RESULTS = (*PER_TOKEN, "objective", "nonfinite")


def compared(program: Program) -> set[Node]:
    """The sums over tokens that some comparison reads. A comparison with 0 does not count."""
    order = list(program.nodes())
    maps = (n for n in order if isinstance(n, Map))
    marked = {node.inputs[i] for node in maps for i in _compared_arguments(node.body, False)}
    for node in reversed(order):
        if node in marked and not isinstance(node, Detach):
            marked.update(node.operands)
    return {n for n in marked if isinstance(n, Push) and n.source in program.leaves and n.reduce == "sum"}


def sums_of_one_pass(program: Program, wide: set[Node]) -> set[Node]:
    """The sums over tokens of the results, if one pass in float64 can take all of them.

    Results are the outputs that every program of a loss shares, so that a sum has the same bits in all.
    """
    shared = {k: n for k, n in program.outputs.items() if k.word in RESULTS}
    order = list(replace(program, outputs=shared).nodes())
    sums = [n for n in order if isinstance(n, Push) and n.source in program.leaves]
    if len({(p.source, p.target) for p in sums}) != 1 or wide.isdisjoint(sums):
        return set()
    after: set[Node] = set(sums)  # what depends on one of the sums
    for n in order:
        if not after.isdisjoint(n.operands):
            after.add(n)
    of_tokens: dict[Node, set[Node]] = {}  # by token value, the token values that it needs, itself included
    for n in order:
        if n.stratum in program.leaves:
            of_tokens[n] = {n}.union(*(of_tokens.get(o, ()) for o in n.operands))
    joining = set().union(*(of_tokens[p.operand] for p in sums if p not in wide))
    joining.difference_update(*(of_tokens[p.operand] for p in sums if p in wide))
    return set() if any(p.operand in after for p in sums) or cost(joining) > CHEAP else set(sums)


def _compared_arguments(body: Scalar, inside: bool) -> set[int]:
    if body.op == "arg":
        return {int(body.value or 0)} if inside else set()
    if body.op in CONDITION_ARGS and any(a.op == "const" and a.value == 0.0 for a in body.args):
        inside = False
    else:
        inside = inside or body.op in CONDITION_ARGS
    return {i for a in body.args for i in _compared_arguments(a, inside)}
