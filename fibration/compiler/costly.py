"""Costly functions of coarse values, which a GPU repeats in all threads of a row.

One in both branches of a choice is taken once, of a choice between its arguments:

    select(c, …f(x)…, …f(y)…)  →  select(c, …z…, …z…)     with z = f(select(c, x, y))

A division by a count stays one: `x · (1/n)` is not `a` where `x` is `n·a`, so a mean of ones would not be 1.
"""

from __future__ import annotations

from dataclasses import replace

from fibration.compiler.ir import Map, Node, Scalar, parts, scalar
from fibration.compiler.program import Program
from fibration.language.operators import PRIMITIVES

CHOICE = 5  # a function that costs less is no cheaper than the choice of its argument


def shared(program: Program) -> Program:
    """`program` with these rows applied to its coarse values."""

    def rule(node: Node) -> Node:
        if not isinstance(node, Map) or node.stratum in program.leaves:
            return node
        return replace(node, body=_shared(node.body))

    return program.mapped(rule)


def _shared(s: Scalar) -> Scalar:
    args = [_shared(a) for a in s.args]
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
