"""An advantage where one row has another reward than all others, and everything else is alike.

All rows but one have the reward `BASE`. All log-probs are equal, and each attribute has one value. Rows and groups may
have any size. So a row is the own row, or shares with it one of the strata that rows lie over: these are the kinds of
rows. A statistic takes as many values as it covers kinds of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Any

from fibration.language.atoms import Attribute, Count, Parameter, Reading, Stratum, read_at, reward
from fibration.language.declared import LogProb
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ANY, NOT_NEGATIVE, POSITIVE, Signs, maximum, sqrt
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, Ordered, atoms_within
from fibration.language.sympy_bridge import cancelled, symbol, to_sympy, vanishes
from fibration.language.traversal import desugar
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import Case, TooManyCases, cases

BASE, MORE, LEVEL = Reading("the reward of all others"), Reading("more"), Reading("a log-prob")
ZERO = as_expression(0)
OWN = 0  # the kind of the own row; kind k shares with it the k-th of the strata that rows lie over, and no finer one
MOST_KINDS = 8
FURTHER = [Reading(f"further tokens of kind {k}") for k in range(MOST_KINDS + 1)]
TOKENS: list[Expression] = [1 + FURTHER[OWN], *FURTHER[1:]]  # how many tokens the rows of each kind have


class NotAlike(Exception):
    """The formula reads something that is not known from these few values; the message names it."""


@dataclass(frozen=True)
class Alike:
    """A formula in which the own row has the reward `own`, and all others have `BASE`. Raises `NotAlike`."""

    h: Hierarchy
    formula: Expression
    own: Expression

    @cached_property
    def below(self) -> list[Stratum]:
        """The strata that rows lie over and the formula reads, the finest first."""
        shape = whole_batch(self.h)
        read = {place for a in atoms_within(self.formula) for place in (read_at(a), getattr(a, "of", None))}
        known = (s for s in shape.coarser(self.h.rows) if s in read)
        found = sorted(known, key=lambda s: -len(shape.coarser(s)))
        if any(t not in shape.coarser(s) for s, t in itertools.pairwise(found)):
            raise NotAlike("strata that cross")
        if len(found) > MOST_KINDS:
            raise NotAlike("too many strata")
        return found

    def value(self, e: Expression, kind: int = OWN) -> Expression:
        """A formula at a row of this kind, or at a token of it."""
        if isinstance(e, Apply):
            return apply(e.operator, *(self.value(a, kind) for a in e.arguments))
        if isinstance(e, (Number, Attribute, Parameter)):
            return e
        if e == reward:
            return self.own if kind == OWN else BASE
        if isinstance(e, LogProb):
            return LEVEL
        if isinstance(e, Ordered):
            inside = self.value(desugar(e.formula), kind)
            if e.of is None and e.over == self.h.rows and vanishes(to_sympy(inside)):
                return ZERO
            raise NotAlike(str(e))
        if isinstance(e, Count):
            return self._count(e, kind)
        if isinstance(e, Aggregate):
            return self._statistic(e, kind)
        raise NotAlike(str(e))

    def _count(self, e: Count, kind: int) -> Expression:
        if e.of == e.over:
            return as_expression(1)
        places = [self.h.rows, *self.below]
        if e.over in places[kind:]:
            if e.of in places:
                return e
            if (e.of,) == self.h.leaves:
                return sum(TOKENS[1 : places.index(e.over) + 1], start=TOKENS[OWN])  # type: ignore[arg-type]
        raise NotAlike(f"{e} of other rows")

    def _statistic(self, e: Aggregate, kind: int) -> Expression:
        formula = desugar(e.formula)
        if e.over == self.h.rows and e.of is None:  # over the tokens of a row, which are all alike
            inside = self.value(formula, kind)
            if e.kind == "deviation" or (e.kind == "total" and vanishes(to_sympy(inside))):
                return ZERO
            if e.kind == "total" and kind != OWN:
                raise NotAlike(str(e))
            return TOKENS[OWN] * inside if e.kind == "total" else inside
        if e.over not in self.below or e.of not in (None, self.h.rows) or e.kind == "quantile":
            raise NotAlike(str(e))
        last = self.below.index(e.over) + 1  # type: ignore[arg-type]
        if kind > last:  # over an element that the own row does not lie over
            if e.kind not in ("mean", "largest") or e.others:
                raise NotAlike(str(e))
            return self.value(formula, kind)
        numbers = dict(self._numbers(e.of, last))
        values = {k: self.value(formula, k) for k in numbers}
        if e.others:
            numbers[kind] = numbers[kind] - 1
        return self._gathered(e.kind, list(values.values()), list(numbers.values()))

    def _numbers(self, of: object, last: int) -> Iterator[tuple[int, Expression]]:
        """Yields how many rows, or tokens, of each kind lie over the own element of the last stratum."""
        before: Expression = as_expression(1)
        yield OWN, before if of is not None else TOKENS[OWN]
        for k, over in enumerate(self.below[:last], 1):
            rows = Count(self.h.rows, over)
            yield k, rows - before if of is not None else TOKENS[k]
            before = rows

    @staticmethod
    def _gathered(kind: str, values: list[Expression], numbers: list[Expression]) -> Expression:
        if all(vanishes(to_sympy(v) - to_sympy(values[0])) for v in values if not v.is_condition) and kind in (
            "mean", "largest", "deviation",
        ):  # fmt: skip
            return ZERO if kind == "deviation" else values[0]
        if kind in ("largest", "some") and len(values) > 2:  # the last kinds may have no rows
            raise NotAlike(kind)
        if kind == "some":
            return reduce(or_, values)
        if kind == "largest":
            return reduce(maximum, values)
        n = sum(numbers[1:], start=numbers[0])
        total = sum((m * v for m, v in zip(numbers[1:], values[1:], strict=True)), start=numbers[0] * values[0])
        if kind == "total":
            return total
        if kind == "mean":
            return total / n
        pairs = itertools.combinations(zip(numbers, values, strict=True), 2)
        squares = [m * k * (v - w) ** 2 for (m, v), (k, w) in pairs]
        return sqrt(sum(squares[1:], start=squares[0]) / (n * (n - 1)))


def rises(h: Hierarchy, formula: Expression) -> bool | None:
    """Whether a reward above all others gives no less advantage than an equal reward, and one below gives no more.

    False: the advantage is the same for all three. None: neither was shown.
    """
    try:
        read, rewards = desugar(formula), (BASE, BASE + MORE, BASE - MORE)
        at_base, above, below = (Alike(h, formula, own).value(read) for own in rewards)
    except NotAlike:
        return None
    known = _known(h)
    try:
        steps = [case for step in (above - at_base, at_base - below) for case in cases(step, known)]
    except TooManyCases:
        return None
    if all(vanishes(case.sympy()) for case in steps):
        return False
    return all(_is_not_below_0(case, known) for case in steps) or None


def _is_not_below_0(case: Case, known: Assumptions) -> bool:
    value, inside = case.sympy(), known.with_signs(dict(case.signs))
    if case.defined(known) and (-1 not in inside.signs(value) or -1 not in inside.signs(cancelled(value))):
        return True
    return any(_contradict(one, other, known) for one, other in itertools.combinations(case.signs, 2))


def _contradict(one: tuple[Any, Signs], other: tuple[Any, Signs], known: Assumptions) -> bool:
    """Whether the known signs of the sum or the difference of two numbers rule out the numbers' own signs."""
    (a, of_a), (b, of_b) = one, other
    return any(
        not known.signs(a + turn * b) & frozenset().union(*(_sum(s, turn * t) for s in of_a for t in of_b))
        for turn in (1, -1)
    )


def _sum(s: int, t: int) -> Signs:
    return ANY if s * t < 0 else frozenset({s or t})


def _known(h: Hierarchy) -> Assumptions:
    """The assumptions on a row; also, the own reward differs, and elements that rows lie over have several rows."""
    shape = whole_batch(h)
    known = {symbol(MORE): POSITIVE} | {symbol(n): POSITIVE if k == 1 else NOT_NEGATIVE for k, n in enumerate(FURTHER)}
    known |= {symbol(Count(h.rows, below)) - 1: POSITIVE for below in shape.coarser(h.rows)}
    return Assumptions(shape, h.assume, h.rows).with_signs(known)
