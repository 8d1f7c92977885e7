"""Costly operations on coarse values. A GPU repeats each in all threads of a row, so values share them.

A division by a number of elements is a product with `1 / n`, which a compiler takes once for all values of an element.
A costly function in both branches of a choice is taken once, of a choice between its arguments:

    select(c, …f(x)…, …f(y)…)  →  select(c, …z…, …z…)     with z = f(select(c, x, y))
"""

from __future__ import annotations

from dataclasses import replace

from fibration.compiler.ir import Input, Map, Node, Pull, Scalar, arg, const, parts, scalar
from fibration.compiler.program import Program
from fibration.language.operators import PRIMITIVES

ONE = const(1.0)
CHOICE = 5  # a function that costs less is no cheaper than the choice of its argument


def shared(program: Program) -> Program:
    """`program` with these rows applied to its coarse values."""

    def rule(node: Node) -> Node:
        if not isinstance(node, Map) or node.stratum in program.leaves:
            return node
        return replace(node, body=_shared(node.body, {arg(i) for i, o in enumerate(node.inputs) if _is_count(o)}))

    return program.mapped(rule)


def _is_count(node: Node) -> bool:
    while isinstance(node, Pull):
        node = node.operand
    return isinstance(node, Input) and node.kind == "count"


def _shared(s: Scalar, counts: set[Scalar]) -> Scalar:
    args = [_shared(a, counts) for a in s.args]
    if s.op == "div" and args[1] in counts and args[0] is not ONE:
        return scalar("mul", args[0], scalar("div", ONE, args[1]))
    if s.op == "select":
        condition, *branches = args
        costly = {p.op for p in parts(branches[0]) if len(p.args) == 1 and PRIMITIVES[p.op].cost > CHOICE}
        for op in sorted(costly):
            found = [{p for p in parts(b) if p.op == op} for b in branches]
            if found[0] != found[1] and len(found[0]) == len(found[1]) == 1:
                (x,), (y,) = found
                one = scalar(op, scalar("select", condition, *x.args, *y.args))
                branches = [_replaced(b, p, one) for b, p in zip(branches, (x, y), strict=True)]
        args = [condition, *branches]
    return Scalar(s.op, tuple(args), s.value)


def _replaced(s: Scalar, old: Scalar, new: Scalar) -> Scalar:
    return new if s is old else Scalar(s.op, tuple(_replaced(a, old, new) for a in s.args), s.value)
