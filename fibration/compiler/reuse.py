"""What a plan computes how often, and how precisely.

On CPUs, passes read the values of a quantile over a segment, which lie in memory while the segment's loops run, instead
of computing them again. Nothing else is left in memory for a later pass: an exponential costs a CPU with vectors no
more than writing a number and reading it back.

Float64 sums over tokens are those that a comparison reads, and those that can join them in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fibration.compiler import ir
from fibration.compiler.ir import Detach, Input, Map, Node, Pull, Push, Quantile, Scalar, Scan
from fibration.compiler.optimise import tidy
from fibration.compiler.plan import Pass, Plan, Scalars, Sweep
from fibration.compiler.program import PER_TOKEN, Program
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
                formula = ir.with_arguments(value.body, [ir.arg(inputs.index(o)) for o in value.inputs])
                body = ir.replaced(node.body, formula, ir.arg(len(node.inputs)))
                node = node if body is node.body else tidy(Map(body, inputs))
                if not isinstance(node, Map):
                    break
        return node

    return program.mapped(read)


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
    read = {*given, *(n for n in step.values if isinstance(n, (Pull, Scan)))}
    wanted = ir.needed(step.values, wanted, lambda n: () if n in read else n.operands)
    return tuple(n for n in step.values if n in wanted and n not in given)


def cost(values: Iterable[Node]) -> int:
    """The cost of computing `values` at one token."""
    total = 0
    for node in values:
        if isinstance(node, Input):
            total += 2
        elif isinstance(node, Map):
            total += sum(PRIMITIVES[s.op].cost for s in ir.parts(node.body) if s.args)
    return total


CONDITION_ARGS = frozenset({"lt", "le"})
CHEAP = 12  # the cost of values that may be computed in float64 to save a pass
RESULTS = (*PER_TOKEN, "objective", "nonfinite")


def compared(program: Program) -> set[Node]:
    """The sums over tokens that some comparison reads. A comparison with 0 does not count."""
    order = list(program.nodes())
    maps = (n for n in order if isinstance(n, Map))
    marked = {node.inputs[i] for node in maps for i in _compared_arguments(node.body, False)}
    marked = ir.needed(order, marked, lambda n: () if isinstance(n, Detach) else n.operands)
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
    after = ir.depending(order, set(sums))
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
