"""Changes a plan for CPUs: passes read the values of a quantile over a segment, which lie in memory while the segment's
loops run, instead of computing them again.

Nothing else is left in memory for a later pass: an exponential costs a CPU with vectors no more than writing a number
and reading it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fibration.compiler.ir import Input, Map, Node, Pull, Quantile, Scalar, Scan, arg, parts, with_arguments
from fibration.compiler.optimise import tidy
from fibration.compiler.plan import Pass, Plan, Scalars, Sweep
from fibration.compiler.program import Program
from fibration.language.operators import PRIMITIVES


def read_quantile_values(program: Program) -> Program:
    """`program`, in which a formula that repeats the formula of a quantile's value reads the value."""
    values = dict.fromkeys(
        v for n in program.nodes() if isinstance(n, Quantile) for v in n.values if isinstance(v, Map)
    )

    def read(node: Node) -> Node:
        if not isinstance(node, Map) or node in values:
            return node
        for value in values:
            if isinstance(value, Map) and set(value.inputs) <= set(node.inputs):
                inputs = (*node.inputs, value)
                formula = with_arguments(value.body, [arg(inputs.index(o)) for o in value.inputs])
                body = _replaced(node.body, formula, arg(len(node.inputs)))
                node = node if body is node.body else tidy(Map(body, inputs))
                if not isinstance(node, Map):
                    break
        return node

    return program.mapped(read)


def _replaced(body: Scalar, old: Scalar, new: Scalar) -> Scalar:
    done = {old: new}  # bodies share parts

    def of(part: Scalar) -> Scalar:
        if part not in done:
            done[part] = Scalar(part.op, tuple(map(of, part.args)), part.value) if part.args else part
        return done[part]

    return of(body)


def find_aside(plan: Plan) -> Plan:
    """`plan` with passes that read the values of a segment's quantiles where earlier passes have set them aside."""
    return replace(plan, stages=tuple(_found(s) if isinstance(s, Sweep) else s for s in plan.stages))


def _found(sweep: Sweep) -> Sweep:
    within = {
        v for s in sweep.steps if isinstance(s, Scalars) for q in s.values if isinstance(q, Quantile) for v in q.values
    }
    aside: set[Node] = set()
    steps: list[Pass | Scalars] = []
    for step in sweep.steps:
        if isinstance(step, Pass):
            found = tuple(n for n in step.values if n in aside)
            steps.append(replace(step, found=found, values=needed(step, *found)) if found else step)
            aside |= within & set(step.aside)
        else:
            steps.append(step)
    return replace(sweep, steps=tuple(steps))


def needed(step: Pass, *given: Node) -> tuple[Node, ...]:
    """The values that a pass computes if it reads `given` from memory."""
    wanted = {n for _, n in step.stores} | {p.operand for p in step.pushes} | set(step.aside)
    for node in reversed(step.values):
        if node in wanted and node not in given and not isinstance(node, (Pull, Scan)):
            wanted.update(node.operands)
    return tuple(n for n in step.values if n in wanted and n not in given)


def cost(values: Iterable[Node]) -> int:
    """The cost of computing `values` at one token."""
    total = 0
    for node in values:
        if isinstance(node, Input):
            total += 2
        elif isinstance(node, Map):
            total += sum(PRIMITIVES[s.op].cost for s in parts(node.body) if s.args)
    return total
