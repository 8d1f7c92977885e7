"""Rewrite rules of scalar bodies. A row has a pattern, its replacement, and the numbers for which both are equal.

In a pattern, an argument matches any part, and equal arguments match equal parts. The parts are simplified before a
rule is tried, and the result is simplified again, from the inside. The first row that matches applies.
No rule keeps the sign of a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from fibration.compiler.ir import CONDITIONS, Scalar, arg, const, scalar
from fibration.compiler.scalars import ONE, ZERO, closed_value, is_closed, times

MINUS_ONE = const(-1.0)
TRUE, FALSE = scalar("le", ZERO, ZERO), scalar("lt", ZERO, ZERO)

# For which numbers a rule holds.
ANY = "any"  # infinities and NaN too
DEFINED = "defined"  # where neither an argument nor the pattern's value is NaN
ROUNDED = "rounded"  # up to a rounding, without division by 0, overflow or underflow
SHARPER = "sharper"  # up to a rounding of 1: the replacement has digits that the pattern loses

# Arguments of patterns: numbers X Y Z, conditions C D, a constant K, choices P Q between constants, at any depth.
X, Y, Z, C, D, K, P, Q = map(arg, range(8))
CONSTANTS, CHOICES = (K,), (P, Q)

Parts = Mapping[Scalar, Scalar]


@dataclass(frozen=True)
class Rule:
    before: Scalar
    after: Scalar | Callable[[Parts], Scalar]
    holds: str = ANY

    def apply(self, s: Scalar) -> Scalar | None:
        """The replacement of `s`, or None if `s` does not match the pattern."""
        parts: dict[Scalar, Scalar] = {}
        if not _fits(self.before, s, parts):
            return None
        return _built(self.after, parts) if isinstance(self.after, Scalar) else self.after(parts)


def _fits(pattern: Scalar, s: Scalar, parts: dict[Scalar, Scalar]) -> bool:
    if pattern.op == "arg":
        if (pattern in CONSTANTS and s.op != "const") or (pattern in CHOICES and not _only_constants(s)):
            return False
        return parts.setdefault(pattern, s) is s
    if not pattern.args:
        return pattern is s
    return pattern.op == s.op and all(_fits(p, a, parts) for p, a in zip(pattern.args, s.args, strict=True))


def _only_constants(s: Scalar) -> bool:
    return s.op == "const" or (s.op == "select" and all(_only_constants(a) for a in s.args[1:]))


def _built(template: Scalar, parts: Parts) -> Scalar:
    if template.op == "arg":
        return parts[template]
    args = tuple(_built(a, parts) for a in template.args)
    return rewrite(Scalar(template.op, args, template.value)) if args else template


def _into_branches(choice: Scalar, factor: Scalar) -> Callable[[Parts], Scalar]:
    """Returns a function that builds `choice · factor`, with the factor in every non-zero branch, at any depth."""

    def simple(s: Scalar) -> Scalar:
        return scalar("select", s.args[0], *map(simple, s.args[1:])) if s.op == "select" else simplify(s)

    return lambda parts: simple(times(_built(choice, parts), _built(factor, parts)))


add, sub, mul, div, neg = (partial(scalar, op) for op in ("add", "sub", "mul", "div", "neg"))
exp, expm1 = partial(scalar, "exp"), partial(scalar, "expm1")
lt, le, both, either, no = (partial(scalar, op) for op in ("lt", "le", "and", "or", "not"))
select = partial(scalar, "select")

RULES: tuple[Rule, ...] = (
    Rule(scalar("stop", X), X),  # derivatives have been taken
    Rule(add(X, neg(Y)), sub(X, Y)),
    Rule(add(select(C, ZERO, X), select(C, Y, Z)), select(C, Y, add(X, Z))),
    Rule(add(select(C, X, ZERO), select(C, Y, Z)), select(C, add(X, Y), Z)),
    Rule(add(select(C, X, Y), select(C, ZERO, Z)), select(C, X, add(Y, Z))),
    Rule(add(select(C, X, Y), select(C, Z, ZERO)), select(C, add(X, Z), Y)),
    Rule(add(ZERO, X), X),
    Rule(add(X, ZERO), X),
    Rule(sub(X, neg(Y)), add(X, Y)),
    Rule(sub(X, ZERO), X),
    Rule(sub(ZERO, X), neg(X)),
    Rule(mul(ZERO, X), ZERO, DEFINED),
    Rule(mul(X, ZERO), ZERO, DEFINED),
    Rule(mul(ONE, X), X),
    Rule(mul(X, ONE), X),
    Rule(mul(MINUS_ONE, X), neg(X)),
    Rule(mul(X, MINUS_ONE), neg(X)),
    Rule(mul(neg(X), neg(Y)), mul(X, Y)),
    Rule(mul(div(X, Y), Y), X, ROUNDED),  # arises from weighted means of means
    Rule(mul(select(C, X, ZERO), Y), _into_branches(select(C, X, ZERO), Y), DEFINED),
    Rule(mul(select(C, ZERO, X), Y), _into_branches(select(C, ZERO, X), Y), DEFINED),
    Rule(mul(Y, select(C, X, ZERO)), _into_branches(select(C, X, ZERO), Y), DEFINED),
    Rule(mul(Y, select(C, ZERO, X)), _into_branches(select(C, ZERO, X), Y), DEFINED),
    # The slope of `expm1(-x) + x` is `1 - exp(-x)`, which float32 rounds to 0 for small x.
    Rule(sub(ONE, exp(X)), neg(expm1(X)), SHARPER),
    Rule(sub(exp(X), ONE), expm1(X), SHARPER),
    Rule(add(exp(X), MINUS_ONE), expm1(X), SHARPER),
    Rule(add(neg(exp(X)), ONE), neg(expm1(X)), SHARPER),
    Rule(div(X, ONE), X),
    Rule(div(ZERO, X), ZERO, DEFINED),
    Rule(neg(neg(X)), X),
    Rule(neg(sub(X, Y)), sub(Y, X)),
    Rule(lt(X, X), FALSE),
    Rule(le(X, X), TRUE, DEFINED),
    # Comparing a choice between constants with a constant gives a condition on the choice. Slopes often do this.
    Rule(lt(select(C, P, Q), K), either(both(C, lt(P, K)), both(no(C), lt(Q, K)))),
    Rule(lt(K, select(C, P, Q)), either(both(C, lt(K, P)), both(no(C), lt(K, Q)))),
    Rule(le(select(C, P, Q), K), either(both(C, le(P, K)), both(no(C), le(Q, K)))),
    Rule(le(K, select(C, P, Q)), either(both(C, le(K, P)), both(no(C), le(K, Q)))),
    Rule(both(FALSE, C), FALSE),
    Rule(both(C, FALSE), FALSE),
    Rule(both(TRUE, C), C),
    Rule(both(C, TRUE), C),
    Rule(either(TRUE, C), TRUE),
    Rule(either(C, TRUE), TRUE),
    Rule(either(FALSE, C), C),
    Rule(either(C, FALSE), C),
    Rule(no(TRUE), FALSE),
    Rule(no(FALSE), TRUE),
    Rule(select(TRUE, X, Y), X),
    Rule(select(FALSE, X, Y), Y),
    Rule(select(C, K, select(D, K, X)), select(either(C, D), K, X)),
    Rule(select(C, X, X), X),
)
KEPT = 1 << 14  # bodies recur, within a program and between the programs of an operator
_OF: dict[str, list[Rule]] = {}
for _rule in RULES:
    _OF.setdefault(_rule.before.op, []).append(_rule)


@lru_cache(KEPT)
def simplify(body: Scalar) -> Scalar:
    """Round constants to float64, fold them and apply the rules, bottom-up."""
    if body.op == "const":
        return const(float(body.value))  # type: ignore[arg-type]
    return rewrite(Scalar(body.op, tuple(map(simplify, body.args)), body.value)) if body.args else body


@lru_cache(KEPT)
def rewrite(s: Scalar) -> Scalar:
    """Rewrites `s`, whose parts are simplified: to its value if that is a finite constant or a truth value, else by the
    first rule.

    A part without a finite value stays as it is written, such as `0/0`. Backends print its value.
    """
    if s.op in CONDITIONS and is_closed(s):
        return TRUE if closed_value(s) else FALSE
    if s.op != "select" and s.args and all(a.op == "const" for a in s.args):
        value = closed_value(s)
        return const(value + 0.0) if math.isfinite(value) else s  # -0.0 becomes 0.0, which the rules match
    for rule in _OF.get(s.op, ()):
        made = rule.apply(s)
        if made is not None:
            return made
    return s
