"""Simplifies a program until nothing changes. No rewrite changes a value by more than a rounding.

Interned nodes are shared already, and nodes that no output reaches are dead. The rewrites are for constants and neutral
elements in bodies (`rules.py`), for constant operands, and for a map that another map reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from fibration.compiler.derivative import ZERO
from fibration.compiler.hoist import hoist
from fibration.compiler.ir import (
    Const,
    Detach,
    Map,
    Mix,
    Node,
    Pull,
    Push,
    Scalar,
    Scan,
    arg,
    arguments,
    const,
    count_input,
    scalar,
    with_arguments,
)
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.compiler.scalars import closed_value

MINUS = scalar("neg", arg(0))
FUSED_SIZE = 60  # a longer body is harder to read, and no faster


def optimise(program: Program) -> Program:
    """Simplifies every body, then fuses a map into its only user."""
    program = program.mapped(tidy)
    summed = {replace(n, wide=False) for n in program.nodes() if isinstance(n, Push) and n.wide}
    if summed:  # a sum that is needed in float64 is computed once, in float64
        program = program.mapped(tidy, lambda n: replace(n, wide=True) if n in summed else n)
    program, leaves = hoist(program), program.leaves
    while True:
        uses = Counter(o for n in program.nodes() for o in n.operands)
        kept = set(program.outputs.values()) | set(program.names)
        fusable: set[Node] = {
            n
            for n in program.nodes()
            if isinstance(n, Map) and uses[n] == 1 and n not in kept and size(n.body) < FUSED_SIZE
        }
        fused = program.mapped(lambda n: _positive(tidy(n), leaves), partial(_fuse, inner=fusable))
        if list(fused.outputs.values()) == list(program.outputs.values()):
            return fused.validate()
        program = fused


def size(body: Scalar) -> int:
    return 1 + sum(size(a) for a in body.args)


def _fuse(node: Node, inner: set[Node]) -> Node:
    if not isinstance(node, Map) or not any(o in inner for o in node.inputs):
        return node
    operands: dict[Node, int] = {}
    substitution = []
    for o in node.inputs:
        if o in inner and isinstance(o, Map):
            table = [arg(operands.setdefault(x, len(operands))) for x in o.inputs]
            substitution.append(with_arguments(o.body, table))
        else:
            substitution.append(arg(operands.setdefault(o, len(operands))))
    return Map(with_arguments(node.body, substitution), tuple(operands))


def tidy(node: Node) -> Node:
    """Simplifies a map's body, binds constant operands, and drops unused ones. A sum of a constant becomes a count."""
    if isinstance(node, Const):
        return Const(float(node.value), node.over)
    if isinstance(node, Detach):  # derivatives have been taken
        return node.operand
    if isinstance(node, Mix) and _is_zero(node.operand):
        return Const(0.0, node.stratum)
    if isinstance(node, Scan) and (_is_zero(node.discount) or all(map(_is_zero, node.values))):
        return Const(0.0, node.stratum)
    if isinstance(node, (Push, Pull)) and isinstance(node.operand, Const):
        value = node.operand.value
        if isinstance(node, Pull) or node.reduce == "max" or value == 0.0:
            return Const(value, node.stratum)
        return tidy(Map(scalar("mul", const(value), arg(0)), (count_input(node.source, node.target),)))
    if isinstance(node, Push) and node.reduce == "sum" and isinstance(x := node.operand, Map) and x.body.op == "neg":
        positive = tidy(Map(x.body.args[0], x.inputs))  # two channels often have one sum, up to
        return Map(scalar("neg", arg(0)), (replace(node, operand=positive),))  # the sign
    if not isinstance(node, Map):
        return node
    operands: dict[Node, int] = {}
    table: list[Scalar] = []
    for o in node.inputs:
        table.append(const(o.value) if isinstance(o, Const) else arg(operands.setdefault(o, len(operands))))
    body = simplify(with_arguments(node.body, table))
    for x in [x for x in operands if isinstance(x, Map) and x.body is MINUS]:  # even functions of both channels are one
        of = operands.setdefault(x.inputs[0], len(operands))
        places = [scalar("neg", arg(of)) if i == operands[x] else arg(i) for i in range(len(operands))]
        without = simplify(with_arguments(body, places))
        body = without if size(without) <= size(body) else body
    used = sorted(arguments(body))
    if not used:
        return Const(closed_value(body), node.stratum)
    renumber = {old: arg(new) for new, old in enumerate(used)}
    chosen = tuple(list(operands)[i] for i in used)
    body = with_arguments(body, [renumber.get(i, ZERO) for i in range(len(operands))])
    return chosen[0] if body is arg(0) else Map(body, chosen)


def _positive(node: Node, leaves: Collection[str]) -> Node:
    """A sum over tokens without the minus sign that all branches but 0 have: so two channels often share a sum's work,
    up to the sign.
    """
    x = node.operand if isinstance(node, Push) and node.reduce == "sum" and node.source in leaves else None
    if not isinstance(node, Push) or not isinstance(x, Map):
        return node
    inputs = dict.fromkeys(x.inputs)

    def of(s: Scalar) -> Scalar | None:
        if s.op == "arg" and isinstance(y := x.inputs[int(s.value or 0)], Map) and y.body is MINUS:
            inputs[y.inputs[0]] = None
            return arg(list(inputs).index(y.inputs[0]))
        if s.op != "select":
            return s.args[0] if s.op == "neg" else s if s is ZERO else None
        a, b = map(of, s.args[1:])
        return None if a is None or b is None else scalar("select", s.args[0], a, b)

    body = of(x.body)
    return node if body is None else Map(MINUS, (replace(node, operand=tidy(Map(body, tuple(inputs)))),))


def _is_zero(node: Node) -> bool:
    return isinstance(node, Const) and node.value == 0.0
