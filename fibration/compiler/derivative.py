"""Scalar derivatives: one rule per operator, differentiated in the branch that holds at the point."""

from __future__ import annotations

from collections.abc import Callable

from fibration.compiler.ir import CONDITIONS, Scalar, const, scalar

ONE, ZERO = const(1.0), const(0.0)


def times(slope: Scalar, factor: Scalar) -> Scalar:
    """`slope · factor`, with the factor inside the branches: `0 · inf` must not turn a dead branch into NaN."""
    if slope is ZERO or factor is ZERO:
        return ZERO
    if slope is ONE:
        return factor
    if factor is ONE:
        return slope
    if slope is const(-1.0):
        return scalar("neg", factor)
    if slope.op == "select":
        c, a, b = slope.args
        return scalar("select", c, times(a, factor), times(b, factor))
    if slope.op == "neg":
        return scalar("neg", times(slope.args[0], factor))
    if slope.op == "div" and slope.args[0] is ONE:
        return scalar("div", factor, slope.args[1])
    return scalar("mul", slope, factor)


def plus(a: Scalar, b: Scalar) -> Scalar:
    if a is ZERO:
        return b
    return a if b is ZERO else scalar("add", a, b)


# One row per scalar operator: (the node, the derivatives of its arguments) -> the derivative of the node.
RULES: dict[str, Callable[[Scalar, tuple[Scalar, ...]], Scalar]] = {
    "const": lambda s, d: ZERO,
    "add": lambda s, d: plus(d[0], d[1]),
    "sub": lambda s, d: plus(d[0], times(const(-1.0), d[1])),
    "mul": lambda s, d: plus(times(d[0], s.args[1]), times(d[1], s.args[0])),
    "div": lambda s, d: plus(
        _over(d[0], s.args[1]), times(const(-1.0), _over(times(d[1], s), s.args[1]))
    ),
    "neg": lambda s, d: times(const(-1.0), d[0]),
    "exp": lambda s, d: times(d[0], s),
    "log": lambda s, d: _over(d[0], s.args[0]),
    "expm1": lambda s, d: times(d[0], scalar("exp", s.args[0])),
    "log1p": lambda s, d: _over(d[0], scalar("add", ONE, s.args[0])),
    "tanh": lambda s, d: times(d[0], scalar("sub", ONE, scalar("mul", s, s))),
    "sigmoid": lambda s, d: times(d[0], scalar("mul", s, scalar("sub", ONE, s))),
    "sqrt": lambda s, d: _over(d[0], scalar("mul", const(2.0), s)),
    "select": lambda s, d: d[1] if d[1] is d[2] else scalar("select", s.args[0], d[1], d[2]),
}  # fmt: skip


def _over(a: Scalar, b: Scalar) -> Scalar:
    if a is ZERO:
        return ZERO
    if a.op == "select":
        return scalar("select", a.args[0], _over(a.args[1], b), _over(a.args[2], b))
    return scalar("div", a, b)


def derivative(body: Scalar, position: int) -> Scalar:
    """`∂body/∂arg(position)`: conditions are constants, and the branch taken is the branch differentiated."""
    known: dict[Scalar, Scalar] = {}

    def of(s: Scalar) -> Scalar:
        if s not in known:
            if s.op == "arg":
                known[s] = ONE if s.value == position else ZERO
            elif s.op in CONDITIONS:
                known[s] = ZERO
            else:
                known[s] = RULES[s.op](s, tuple(of(a) for a in s.args))
        return known[s]

    return of(body)
