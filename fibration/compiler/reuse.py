"""Changes a plan: an earlier pass leaves a value for the last pass over the tokens in the memory of the result.

The memory of the coefficients is written once more, and the last pass reads it instead of computing an exponential.
This is faster on CPUs, where arithmetic costs more than memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fibration.compiler.ir import Input, Map, Node, Pull, Scalar, Scan
from fibration.compiler.keys import Key
from fibration.compiler.plan import Pass, Plan, Scalars, Sweep
from fibration.language.operators import PRIMITIVES


def keep(plan: Plan, result: Key) -> Plan:
    """`plan` with one value kept in `result`: the one that saves the last pass the most. `plan` itself if none does.

    With several leaves no value is kept, because each leaf fills its part of the result in turn.
    """
    passes = [p for sweep in plan.sweeps for p in sweep.passes]
    last = passes[-1] if passes else None
    if last is None or [k for k, _ in last.stores] != [result] or last.pushes or last.wide:
        return plan
    earlier = next((p for p in reversed(passes[:-1]) if not p.wide and not p.stores), None)
    if earlier is None:
        return plan
    wanted = [n for _, n in last.stores]
    both = [n for n in last.values if isinstance(n, Map) and n in earlier.values]
    shared = [n for n in both if n not in wanted and n not in plan.precise]  # it gets the result's precision
    best = min(shared, key=lambda n: cost(needed(last, n)), default=None)
    if best is None or cost(needed(last, best)) + 4 >= cost(last.values):  # reading and writing it are not free
        return plan
    changed = {
        id(earlier): replace(earlier, kept=(result, best)),
        id(last): replace(last, values=needed(last, best), recalled=(result, best)),
    }

    def step(s: Pass | Scalars) -> Pass | Scalars:
        return changed.get(id(s), s)

    stages = tuple(
        replace(s, steps=tuple(step(x) for x in s.steps)) if isinstance(s, Sweep) else s for s in plan.stages
    )
    return replace(plan, stages=stages)


def needed(step: Pass, given: Node) -> tuple[Node, ...]:
    """The values that a pass computes if it reads `given` from memory."""
    wanted = {n for _, n in step.stores}
    for node in reversed(step.values):
        if node in wanted and node is not given and not isinstance(node, (Pull, Scan)):
            wanted.update(node.operands)
    return tuple(n for n in step.values if n in wanted and n is not given)


def cost(values: Iterable[Node]) -> int:
    """The cost of computing `values` at one token."""
    total = 0
    for node in values:
        if isinstance(node, Input):
            total += 2
        elif isinstance(node, Map):
            total += sum(PRIMITIVES[s.op].cost for s in _parts(node.body) if s.args)
    return total


def _parts(body: Scalar) -> set[Scalar]:
    return {body}.union(*(_parts(a) for a in body.args))
