"""Split an expression into branches: branch-free values, each with the signs of differences under which it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import sympy

from fibration.language.expressions import Apply, Expression, ExpressionTooLarge, Number, apply
from fibration.language.operators import ANY, OPERATORS, ZERO, Signs, Valued
from fibration.language.sympy_bridge import flowing, to_sympy
from fibration.language.traversal import desugar, rewrite
from fibration.laws.signs import smooth_signs
from fibration.laws.signs.assumptions import Assumptions

MAX_CASES = 512
_LEFT: ContextVar[list[int] | None] = ContextVar("comparisons that are left", default=None)
NOTHING = Number(Fraction(0))
_TRUE_SIGNS: dict[str, Signs] = {
    "<": frozenset({-1}), "<=": frozenset({-1, 0}), ">": frozenset({1}), ">=": frozenset({0, 1}),
}  # fmt: skip
Conditions = dict[Any, Signs]  # the signs that differences have


class Need(NamedTuple):
    """An expression, with the signs at which an operator of it has a value.

    `moved_by`: the symbols from which a gradient flows into a root, as the formula is written; of other operators none.
    `sqrt(x - x)` is 0, and its derivative by the chain rule is `0·inf`, which sympy drops with the root.
    """

    value: Any
    signs: Signs
    moved_by: frozenset[Any] = frozenset()

    def of_slopes(self, moves: Callable[[Any], bool]) -> Need:
        """The need for a value and slopes: a root of 0 has no slope towards symbols for which `moves` holds."""
        return Need(self.value, self.signs - ZERO) if any(map(moves, self.moved_by)) else self


Needs = tuple[Need, ...]


@dataclass(frozen=True)
class Case:
    """A branch: `value` holds where every difference in `signs` has one of its signs.

    The value and the conditions that lead to it are defined where every expression in `needs` has one of its signs: no
    division by 0, no logarithm or root outside its domain. sympy drops these needs: it turns `x*x/x` into `x`.
    """

    signs: tuple[tuple[Any, Signs], ...]
    value: Expression
    needs: Needs = ()

    def sympy(self) -> Any:
        return flowing(to_sympy(self.value))

    def held(self) -> Any:
        """The value, in which `stop` still stops derivatives; `flowing` removes it after differentiation."""
        return to_sympy(self.value)

    def slope(self, variable: Any) -> Any:
        """The derivative; what is inside `stop` adds nothing to it."""
        return flowing(sympy.diff(to_sympy(self.value), variable))

    def defined(self, assume: Assumptions, needs: Needs | None = None) -> bool:
        """Whether the assumptions and the case's conditions imply its needs (or `needs`), so that it has a value."""
        inside = assume.with_signs(dict(self.signs))
        return all(smooth_signs.signs(n.value, inside) <= n.signs for n in (self.needs if needs is None else needs))

    def needs_of_slopes(self, moves: Callable[[Any], bool]) -> Needs:
        """The needs for a value and for slopes towards the symbols for which `moves` holds."""
        return tuple(n.of_slopes(moves) for n in self.needs)


class TooManyCases(Exception):
    """An expression has more than `MAX_CASES` branches, or needs too many comparisons; the law is then undecided."""


@contextmanager
def at_most(comparisons: int) -> Iterator[None]:
    """Inside, this thread splits expressions with so many comparisons in all; more of them raise `TooManyCases`."""
    before = _LEFT.set([comparisons])
    try:
        yield
    finally:
        _LEFT.reset(before)


def cases(expression: Expression, assume: Assumptions) -> list[Case]:
    """Every branch that the assumptions do not rule out, with disjoint conditions. Raises `TooManyCases`."""
    if expression not in assume.branches:
        try:
            assume.branches[expression] = [
                Case(tuple(path.signs.items()), value, tuple(dict.fromkeys((*path.needs, *needs(value)))))
                for path, value in _split(rewrite(desugar(expression), _stopped), Path({}, assume), assume)
            ]
        except TooManyCases as error:
            assume.branches[expression] = error
        except ExpressionTooLarge as error:  # written without sugar
            assume.branches[expression] = TooManyCases(error.what)
    found: list[Case] | TooManyCases = assume.branches[expression]
    if isinstance(found, TooManyCases):
        raise found
    if len(found) > MAX_CASES:
        raise TooManyCases(str(expression))
    return found


def _stopped(e: Expression) -> Expression:
    """`0*stop(a)` for `0*a`: no gradient flows through a factor of a written 0. One flows beside the 0 of a `where`."""
    if isinstance(e, Apply) and e.operator == "*" and NOTHING in e.arguments:
        return Apply("*", tuple(a if a == NOTHING else Apply("stop", (a,)) for a in e.arguments))
    return e


def needs(e: Expression, flows: bool = True) -> Iterator[Need]:
    """What a branch-free expression needs to have a value. `flows`: a gradient flows through it."""
    if isinstance(e, Apply):
        for a in e.arguments:
            yield from needs(a, flows and e.operator != "stop")
        row = OPERATORS[e.operator]
        assert isinstance(row, Valued)
        for value, signs in row.domain(*e.arguments):
            found = flowing(to_sympy(value))
            is_root = flows and 0 in signs
            yield Need(found, signs, frozenset({*found.free_symbols, *_flowing_into(value)} if is_root else ()))


def _flowing_into(e: Expression) -> Iterator[Any]:
    """The symbols from which a gradient flows into a branch-free expression."""
    if not isinstance(e, Apply):
        yield from to_sympy(e).free_symbols
    elif e.operator != "stop":
        for a in e.arguments:
            yield from _flowing_into(a)


@dataclass(frozen=True)
class Path:
    """The signs that the conditions passed so far imply, and what these conditions need to have a value."""

    signs: dict[Any, Signs]
    before: Assumptions  # assumptions with all of `signs` but the last
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
    """Both outcomes of a condition, with the signs that each implies."""
    if not isinstance(condition, Apply):  # a statistic `some`, whose truth is the number 0 or 1
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
            read = replace(k2, needs=(*k2.needs, *needs(a, flows=False), *needs(b, flows=False)))
            found += _compare(condition.operator, flowing(to_sympy(a) - to_sympy(b)), read, assume)
    return found


def _compare(operator: str, difference: Any, path: Path, assume: Assumptions) -> list[tuple[Path, bool]]:
    if (left := _LEFT.get()) is not None:
        left[0] -= 1
        if left[0] < 0:
            raise TooManyCases("too many comparisons")
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


def merged(conditions: Conditions, more: Conditions) -> Conditions | None:
    """Both sets of conditions, or None if they exclude each other."""
    result = dict(conditions)
    for d, signs in more.items():
        result[d] = result.get(d, ANY) & signs
        if not result[d]:
            return None
    return result
