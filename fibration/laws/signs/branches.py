"""Split an expression into its branches: under which signs of which differences it takes which branch-free value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy

from fibration.language.expressions import Apply, Expression, apply
from fibration.language.operators import OPERATORS, ZERO, Signs, Valued
from fibration.language.sympy_bridge import flowing, to_sympy
from fibration.language.traversal import desugar
from fibration.laws.signs import smooth_signs
from fibration.laws.signs.assumptions import Assumptions

MAX_CASES = 512
_TRUE_SIGNS: dict[str, Signs] = {
    "<": frozenset({-1}), "<=": frozenset({-1, 0}), ">": frozenset({1}), ">=": frozenset({0, 1}),
}  # fmt: skip


Needs = tuple[tuple[Any, Signs], ...]


@dataclass(frozen=True)
class Case:
    """`value` holds where every difference in `signs` has one of its signs.

    It is defined, and so are the conditions that lead to it, where what is in `needs` has one of its signs: no division
    by 0, no logarithm or root outside its domain. sympy forgets these: to it `x*x/x` is `x`.
    """

    signs: tuple[tuple[Any, Signs], ...]
    value: Expression
    needs: Needs = ()

    def sympy(self) -> Any:
        return flowing(to_sympy(self.value))

    def held(self) -> Any:
        """The value with what is stopped as it stands; once it is derived, `flowing` undoes that."""
        return to_sympy(self.value)

    def slope(self, variable: Any) -> Any:
        """The derivative, in which what is stopped has no part."""
        return flowing(sympy.diff(to_sympy(self.value), variable))

    def defined(self, assume: Assumptions, needs: Needs | None = None) -> bool:
        """Whether the assumptions and the case's own conditions rule out that it has no value (or other `needs`)."""
        inside = assume.with_signs(dict(self.signs))
        return all(smooth_signs.signs(e, inside) <= allowed for e, allowed in (self.needs if needs is None else needs))

    def needs_of_slopes(self, moves: Callable[[Any], bool]) -> Needs:
        """What it needs to have a value and slopes: a root of 0 has none, if what it is taken of moves."""
        return tuple((e, allowed - ZERO if moves(e) else allowed) for e, allowed in self.needs)


class TooManyCases(Exception):
    """More branches than can be looked at; the law is then undecided."""


def cases(expression: Expression, assume: Assumptions) -> list[Case]:
    """Every branch that the assumptions do not rule out. Their conditions exclude each other."""
    if expression not in assume.branches:
        try:
            assume.branches[expression] = [
                Case(tuple(path.signs.items()), value, tuple(dict.fromkeys((*path.needs, *needs(value)))))
                for path, value in _split(desugar(expression), Path({}, assume), assume)
            ]
        except TooManyCases as error:
            assume.branches[expression] = error
    found: list[Case] | TooManyCases = assume.branches[expression]
    if isinstance(found, TooManyCases):
        raise found
    if len(found) > MAX_CASES:
        raise TooManyCases(str(expression))
    return found


def needs(e: Expression) -> Iterator[tuple[Any, Signs]]:
    """Which signs of what a branch-free expression needs to have a value."""
    if isinstance(e, Apply):
        for a in e.arguments:
            yield from needs(a)
        row = OPERATORS[e.operator]
        assert isinstance(row, Valued)
        for value, signs in row.domain(*e.arguments):
            yield flowing(to_sympy(value)), signs


@dataclass(frozen=True)
class Path:
    """What the conditions passed so far say, and what they need to have a value."""

    signs: dict[Any, Signs]
    before: Assumptions  # that all of these are known, but for the last
    needs: Needs = ()

    @cached_property
    def known(self) -> Assumptions:
        return self.before.with_signs(self.signs)


def _split(e: Expression, path: Path, assume: Assumptions) -> list[tuple[Path, Expression]]:
    if not isinstance(e, Apply):
        return [(path, e)]
    if e.operator == "where":
        condition, value, otherwise = e.arguments
        found = []
        for inside, truth in _outcomes(condition, path, assume):
            found += _split(value if truth else otherwise, inside, assume)
            if len(found) > MAX_CASES:
                raise TooManyCases(str(e))
        return found
    partial: list[tuple[Path, tuple[Expression, ...]]] = [(path, ())]
    for argument in e.arguments:
        partial = [(k2, (*done, a)) for k, done in partial for k2, a in _split(argument, k, assume)]
        if len(partial) > MAX_CASES:
            raise TooManyCases(str(e))
    return [(k, e if args == e.arguments else apply(e.operator, *args)) for k, args in partial]


def _outcomes(condition: Expression, path: Path, assume: Assumptions) -> list[tuple[Path, bool]]:
    """Both outcomes of a condition, with what each says about signs."""
    if not isinstance(condition, Apply):  # whether it holds of some token is a number, 0 or 1
        return _compare(">", to_sympy(condition), path, assume)
    if condition.operator == "not":
        return [(k, not t) for k, t in _outcomes(condition.arguments[0], path, assume)]
    if condition.operator in ("and", "or"):
        stop = condition.operator == "or"
        found = []
        for k, t in _outcomes(condition.arguments[0], path, assume):
            found += [(k, t)] if t is stop else _outcomes(condition.arguments[1], k, assume)
        return found
    found = []
    left, right = condition.arguments
    for k1, a in _split(left, path, assume):
        for k2, b in _split(right, k1, assume):
            read = replace(k2, needs=(*k2.needs, *needs(a), *needs(b)))
            found += _compare(condition.operator, flowing(to_sympy(a) - to_sympy(b)), read, assume)
    return found


def _compare(operator: str, difference: Any, path: Path, assume: Assumptions) -> list[tuple[Path, bool]]:
    true = _TRUE_SIGNS[operator]
    sign, difference = assume.decisive(difference)
    if difference.could_extract_minus_sign():
        sign, difference = -sign, -difference
    if sign < 0:
        true = frozenset(-s for s in true)
    possible = path.signs.get(difference)
    if possible is None:
        possible = path.known.signs(difference)
    outcomes = []
    for truth, signs in ((True, possible & true), (False, possible - true)):
        if signs == possible:
            outcomes.append((path, truth))
        elif signs:
            outcomes.append((Path({**path.signs, difference: signs}, path.known, path.needs), truth))
    return outcomes
