"""Formulas of tokens near where all policies coincide: the limits of weights, and which conditions can fail.

There each policy's log-prob is that of `old` plus a small number of its own, of either sign. If the formula of a
statistic tends to one number, the statistic tends to that number, and a total to a multiple of it. Any other statistic
may be anything.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from fibration.errors import SpecError
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Count,
    Parameter,
    Reading,
    Stratum,
    Summary,
    Total,
    at,
    token_log_ratio,
)
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import NOT_NEGATIVE, NOT_ZERO, ZERO, Signs, where
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import from_sympy, show, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, transform
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases
from fibration.laws.signs.claim import divided
from fibration.laws.signs.neighbourhood import WORDS, Neighbourhood, is_kinked
from fibration.laws.signs.populations import number_of, places

LONGEST = 60  # characters of a condition that a message quotes
REFERENCE = LogProb(Policy(OLD))
NEVER, ALWAYS = as_expression(0) > 1, as_expression(0) < 1


class Coinciding:
    """Formulas at the tokens of one leaf, or a gate at the elements of a stratum, near where all policies coincide."""

    def __init__(self, h: Hierarchy, leaf: Stratum) -> None:
        self.h, self.leaf = h, leaf
        self.small: dict[Any, int] = {}  # symbols of the changes of policies and statistics
        self.sides: dict[Any, Signs] = {}  # signs of the changes that lie on one side of 0
        self.may_lack = False  # whether a written formula may lack a value, as that of a statistic may

    @cached_property
    def shape(self) -> Shape:
        return whole_batch(self.h)

    @cached_property
    def assume(self) -> Assumptions:
        return Assumptions(self.shape, self.h.assume, self.leaf)

    @property
    def moving(self) -> dict[Any, int]:
        return {symbol(token_log_ratio): 0, **self.small}

    def limits(self, formula: Expression) -> list[Any] | None:
        """The limits of a formula in the branches that can hold near; None if a branch may have no value."""
        near, written = self._near(formula)
        if self.may_lack:
            return None
        try:
            found = near.branches(written)
        except TooManyCases:
            return None
        if not all(near.is_defined(case) and not is_kinked(case.sympy()) for case in found):
            return None
        ends = [case.sympy().subs(self.moving) for case in found]
        return list(dict.fromkeys(ends))

    def question(self, formula: Expression, right: Any) -> str:
        """The condition, such as `D - 1 is below 0`, where a formula does not tend to `right`; '' if it is not one."""
        near, written = self._near(formula)
        try:
            for case in near.branches(written):
                if not vanishes(case.sympy().subs(self.moving) - right):
                    held = {d.subs(self.moving): signs for d, signs in case.signs}
                    asked = {d: s for d, s in held.items() if s in WORDS and not self.assume.signs(d) <= s}
                    words = [f"{show(d)} is {WORDS[s]}" for d, s in asked.items() if not d.is_number]
                    return words[0] if len(words) == 1 and len(words[0]) <= LONGEST else ""
        except (TooManyCases, SpecError):
            pass
        return ""

    def outcomes(self, condition: Expression) -> set[bool] | None:
        """The truth values that a condition can have near; None if they are not known."""
        found = self.limits(where(condition, 1, 0))
        return None if found is None else {bool(value) for value in found}

    def _near(self, formula: Expression) -> tuple[Neighbourhood, Expression]:
        written = self.written(formula)
        return Neighbourhood(self.assume.with_signs(self.sides), self.moving, at_0=False), written

    def written(self, formula: Expression) -> Expression:
        """A formula in terms of the small changes of policies and statistics."""
        return transform(divided(at(formula, self.leaf)), self._atom)

    def _atom(self, atom: Expression) -> Expression:
        if isinstance(atom, LogProb) and atom.policy.name == CURRENT:
            return REFERENCE + token_log_ratio
        if isinstance(atom, LogProb) and atom != REFERENCE:
            return REFERENCE + self._small(f"log_prob({atom.policy}) - log_prob({OLD})")
        if isinstance(atom, Ordered):
            return self._ordered(atom)
        return self._statistic(atom) if isinstance(atom, Aggregate) else atom

    def _small(self, words: str) -> Expression:
        made = Reading(words)
        self.small[symbol(made)] = 0
        return made

    def _ordered(self, o: Ordered) -> Expression:
        """An ordered sum as a multiple of its formula's limit plus a small change; a limit of 0 leaves the change."""
        limit = self._common(o)
        if limit is None:
            return o
        change = self._small(f"change of {o}")
        self.sides[symbol(change)] = self._side(o, to_sympy(limit)) | ZERO
        return limit * replace(o, formula=as_expression(1)) + change if limit != as_expression(0) else change

    def _statistic(self, statistic: Aggregate) -> Expression:
        if statistic.is_condition:
            found = [Coinciding(self.h, each).outcomes(statistic.formula) for each in self._read_at(statistic)]
            self.may_lack |= None in found
            known = set[bool]().union(*(f or {True, False} for f in found))
            if known == {True} and self.assume.presence.may_be_of_none(statistic):
                return as_expression(0) < number_of(statistic)  # type: ignore[operator]
            return (ALWAYS if True in known else NEVER) if len(known) == 1 else statistic
        limit = self._common(statistic)
        if limit is None:
            return statistic
        change = self._small(f"change of {statistic}")
        if statistic.kind == "deviation":  # the deviation of values with one limit tends to 0
            self.sides[symbol(change)] = NOT_NEGATIVE
            return change
        of_none = ZERO if self.assume.presence.may_be_of_none(statistic) else frozenset[int]()
        self.sides[symbol(change)] = self._side(statistic, to_sympy(limit)) | of_none
        if statistic.kind == "total":
            counts = (Count(each, statistic.over) for each in self._read_at(statistic))
            limit = limit * functools.reduce(operator.add, counts)
        return limit + change

    def _side(self, statistic: Summary, limit: Any) -> Signs:
        """The signs of a statistic's formula minus its limit: those of squares are not negative, nor is their mean."""
        found: Signs = frozenset()
        for each in self._read_at(statistic):
            near, written = Coinciding(self.h, each)._near(statistic.formula)
            for case in near.branches(written):
                found |= near.assume.with_signs(dict(case.signs)).signs(case.sympy() - limit)
        return found | ZERO if found >= NOT_ZERO else found

    def _read_at(self, statistic: Summary) -> tuple[Stratum, ...]:
        return places(statistic, self.shape)

    def _common(self, statistic: Summary) -> Expression | None:
        """The one limit of a statistic's formula at all tokens of its element; None if unknown."""
        ends: list[Any] = []
        for each in self._read_at(statistic):
            found = Coinciding(self.h, each).limits(statistic.formula)
            self.may_lack |= found is None
            if not found:
                return None
            ends += found
        if any(not vanishes(e - ends[0]) for e in ends[1:]):
            return None
        try:
            limit = from_sympy(ends[0])
        except SpecError:  # some results of sympy have no written form
            return None
        assert isinstance(statistic.over, Stratum)
        return limit if all(self._is_one(a, statistic.over) for a in atoms(limit)) else None

    def _is_one(self, atom: Expression, stratum: Stratum) -> bool:
        """Whether an atom has one value at all tokens over an element of a stratum."""
        if isinstance(atom, Parameter):
            return atom.on is None or self._lies_under(atom.on, stratum)
        if isinstance(atom, Attribute):
            return self._lies_under(atom.on, stratum)
        return isinstance(atom, (Count, Total)) and self._lies_under(atom.over, stratum)

    def _lies_under(self, place: Any, stratum: Stratum) -> bool:
        return place in (stratum, Stratum(BATCH), *self.shape.coarser(stratum))


def everywhere(h: Hierarchy) -> Iterator[Coinciding]:
    """One `Coinciding` per leaf."""
    return (Coinciding(h, leaf) for leaf in h.leaves)
