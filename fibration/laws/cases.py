"""Split an expression into its branches: under which signs of which differences it takes which branch-free value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from fibration.expressions import Apply, Expression, apply, desugar
from fibration.laws.algebra import Assumptions, Signs, to_sympy

MAX_CASES = 512
_TRUE_SIGNS: dict[str, Signs] = {
    "<": frozenset({-1}), "<=": frozenset({-1, 0}), ">": frozenset({1}), ">=": frozenset({0, 1}),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`value` holds where every difference in `signs` has one of its signs."""

    signs: tuple[tuple[Any, Signs], ...]
    value: Expression

    def sympy(self) -> Any:
        return to_sympy(self.value)


class TooManyCases(Exception):
    """More branches than can be looked at; the law is then undecided."""


def cases(expression: Expression, assume: Assumptions) -> list[Case]:
    """Every branch that the assumptions do not rule out. Their conditions exclude each other."""
    found = [Case(tuple(known.items()), value) for known, value in _split(desugar(expression), {}, assume)]
    if len(found) > MAX_CASES:
        raise TooManyCases(str(expression))
    return found


Known = dict[Any, Signs]


def _split(e: Expression, known: Known, assume: Assumptions) -> list[tuple[Known, Expression]]:
    if not isinstance(e, Apply):
        return [(known, e)]
    if e.operator == "where":
        condition, value, otherwise = e.arguments
        found = []
        for inside, truth in _decide(condition, known, assume):
            found += _split(value if truth else otherwise, inside, assume)
            if len(found) > MAX_CASES:
                raise TooManyCases(str(e))
        return found
    partial: list[tuple[Known, tuple[Expression, ...]]] = [(known, ())]
    for argument in e.arguments:
        partial = [(k2, (*done, a)) for k, done in partial for k2, a in _split(argument, k, assume)]
        if len(partial) > MAX_CASES:
            raise TooManyCases(str(e))
    return [(k, e if args == e.arguments else apply(e.operator, *args)) for k, args in partial]


def _decide(condition: Expression, known: Known, assume: Assumptions) -> list[tuple[Known, bool]]:
    """Both outcomes of a condition, with what each says about signs."""
    assert isinstance(condition, Apply)
    if condition.operator == "not":
        return [(k, not t) for k, t in _decide(condition.arguments[0], known, assume)]
    if condition.operator in ("and", "or"):
        stop = condition.operator == "or"
        found = []
        for k, t in _decide(condition.arguments[0], known, assume):
            found += [(k, t)] if t is stop else _decide(condition.arguments[1], k, assume)
        return found
    found = []
    left, right = condition.arguments
    for k1, a in _split(left, known, assume):
        for k2, b in _split(right, k1, assume):
            found += _compare(condition.operator, to_sympy(a) - to_sympy(b), k2, assume)
    return found


def _compare(operator: str, difference: Any, known: Known, assume: Assumptions) -> list[tuple[Known, bool]]:
    true = _TRUE_SIGNS[operator]
    difference = sympy.expand(difference) if difference.is_polynomial() else sympy.together(difference)
    if difference.could_extract_minus_sign():
        difference, true = -difference, frozenset(-s for s in true)
    possible = known.get(difference)
    if possible is None:
        possible = assume.with_signs(known).signs(difference)
    outcomes = []
    for truth, signs in ((True, possible & true), (False, possible - true)):
        if signs:
            outcomes.append((known if signs == possible else {**known, difference: signs}, truth))
    return outcomes
