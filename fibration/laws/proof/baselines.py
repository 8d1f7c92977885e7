"""What of an advantage is its own reward, and what of it is anything else of its own sample.

A formula is taken apart: so much of the reward of the token itself and of each later one, something of its own row
beside, something of other rows and of the prefix. What is multiplied, divided or bent has to be of one kind: then the
parts add up, and all but the reward is a baseline, or a reward of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy

from fibration.language.atoms import Attribute, Component, Count, Parameter, Stratum, Total, reward
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.hierarchy import Hierarchy
from fibration.language.order import ONE, Ordered
from fibration.language.places import whole_batch
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate, within
from fibration.language.sympy_bridge import ATOM_OF, to_sympy, vanishes
from fibration.language.traversal import atoms, desugar

NONE = sympy.Integer(0)


@dataclass(frozen=True)
class Parts:
    """`now` and `later` times the rewards of the token and of every later one; `own`: and something of its own sample
    from the token on; `rest`: and something of other rows, or of what came before."""

    now: Any = NONE
    later: Any = NONE
    own: bool = False
    rest: bool = False

    @property
    def is_fixed(self) -> bool:
        return not (self.has_reward or self.own or self.rest)

    @property
    def has_reward(self) -> bool:
        return not (vanishes(self.now) and vanishes(self.later))

    def plus(self, other: Parts) -> Parts:
        own, rest = self.own or other.own, self.rest or other.rest
        return Parts(self.now + other.now, self.later + other.later, own, rest)

    def times(self, factor: Any) -> Parts:
        return replace(self, now=self.now * factor, later=self.later * factor)


def of_tokens(h: Hierarchy, formula: Expression) -> bool:
    """Whether rewards are those of tokens: some sum over the tokens of a row, or over a part of these, is of them."""
    sums = (
        a
        for e in within(formula)
        for a in atoms(e)
        if isinstance(a, Ordered) or (isinstance(a, Aggregate) and a.kind == "total" and _is_in_row(h, a.over))
    )
    return any(reward in set(atoms(a.formula)) for a in sums if a.of is None)


def factor(h: Hierarchy, formula: Expression) -> tuple[Any, bool] | None:
    """`κ` in `A = κ·(R - b)`, and whether `R` has more of its row than rewards; None if that is not shown to be so."""
    parts = _Taken(h, of_tokens(h, formula)).parts(desugar(formula))
    if parts is None or not vanishes(parts.now - parts.later) or vanishes(parts.now) or _is_sampled(h, parts.now):
        return None
    return sympy.factor(parts.now), parts.own


def _is_in_row(h: Hierarchy, over: object) -> bool:
    return over == h.rows or not _is_coarse(h, over)


def _is_sampled(h: Hierarchy, share: Any) -> bool:
    """Whether a share of rewards changes with the token at which it is read."""
    read = (ATOM_OF.get(s) for s in share.free_symbols)
    return any(isinstance(a, Attribute) and not _is_coarse(h, a.on) for a in read)


@dataclass(frozen=True)
class _Taken:
    """How formulas are taken apart, where rewards are those of tokens or of rows."""

    h: Hierarchy
    by_token: bool

    def parts(self, e: Expression) -> Parts | None:
        if isinstance(e, Apply):
            return self._applied(e)
        if isinstance(e, (Number, Parameter, Component, Attribute)):
            return Parts()
        if e == reward:
            return Parts(sympy.Integer(1), NONE if self.by_token else sympy.Integer(1))
        if isinstance(e, (Count, Total)):
            return self._counted(e)
        if isinstance(e, Ordered):
            return self._ordered(e)
        if isinstance(e, Aggregate):
            return self._gathered(e)
        return Parts(own=True) if isinstance(e, LogProb) else None

    def _applied(self, e: Apply) -> Parts | None:
        found = [self.parts(a) for a in e.arguments]
        if any(f is None for f in found):
            return None
        known = [f for f in found if f is not None]
        first, last = known[0], known[-1]
        if e.operator in ("+", "-"):
            return first.plus(last if e.operator == "+" else last.times(-1))
        if e.operator == "neg":
            return first.times(-1)
        if e.operator == "*" and first.is_fixed:
            return last.times(to_sympy(e.arguments[0]))
        if e.operator in ("*", "/") and last.is_fixed:
            given = to_sympy(e.arguments[1])
            return first.times(given if e.operator == "*" else 1 / given)
        if e.operator == "where" and first.is_fixed:
            _, one, other = known
            same = vanishes(one.now - other.now) and vanishes(one.later - other.later)
            return Parts(one.now, one.later, one.own or other.own, one.rest or other.rest) if same else None
        return self._bent(known)

    @staticmethod
    def _bent(known: list[Parts]) -> Parts | None:
        """Any function of what is of one kind, and no reward."""
        own, rest = any(p.own for p in known), any(p.rest for p in known)
        return None if any(p.has_reward for p in known) or (own and rest) else Parts(own=own, rest=rest)

    def _counted(self, a: Count | Total) -> Parts:
        """Rows, and what these lie over, are given; how long a row becomes is sampled."""
        if a.over in (None, a.of) or _is_coarse(self.h, a.of):
            return Parts()
        return Parts(own=True, rest=_is_coarse(self.h, a.over) and a.over != self.h.rows)

    def _ordered(self, o: Ordered) -> Parts | None:
        inside = self.parts(desugar(o.formula))
        if inside is None or (_is_coarse(self.h, o.over) and o.over != self.h.rows):
            return None
        if o.is_forward:
            return Parts(rest=True)
        if not inside.has_reward:
            return Parts(own=True)
        plain = o.of is None and o.discount == ONE and vanishes(inside.later) and not _is_sampled(self.h, inside.now)
        return Parts(later=inside.now, own=inside.own or self._reads_tokens(o.formula)) if plain else None

    def _reads_tokens(self, formula: Expression) -> bool:
        """Whether a formula at later tokens has more than rewards."""
        given = (a for a in atoms(formula) if a != reward and not isinstance(a, (Parameter, Component)))
        return any(not isinstance(a, Attribute) or not _is_coarse(self.h, a.on) for a in given)

    def _gathered(self, a: Aggregate) -> Parts | None:
        inside = self.parts(desugar(a.formula))
        if inside is None or _is_sampled(self.h, inside.now):
            return None
        if _is_coarse(self.h, a.of):
            return self._of_rows(a, inside)
        if isinstance(a.over, Stratum) and _is_coarse(self.h, a.over) and a.over != self.h.rows:
            is_sum = a.kind == "total" and self.by_token and vanishes(inside.later) and not inside.rest
            return Parts(inside.now, inside.now, True, True) if is_sum else None
        if not inside.has_reward:
            return Parts(own=True) if not inside.rest or inside.own else Parts(own=True, rest=True)
        is_return = a.kind == "total" and a.over == self.h.rows and vanishes(inside.later)
        own = inside.own or self._reads_tokens(a.formula)
        return Parts(inside.now, inside.now, own=own, rest=True) if is_return else None

    def _of_rows(self, a: Aggregate, inside: Parts) -> Parts | None:
        """Of elements each of which has its own formula, which reads no others."""
        assert isinstance(a.of, Stratum) and isinstance(a.over, Stratum)
        if inside.is_fixed:
            return Parts()
        if not _reads_within(self.h, a.formula, a.of) or (self.by_token and reward in set(atoms(a.formula))):
            return None
        if a.others:
            return Parts(rest=True)
        if a.kind == "total":
            return replace(inside, rest=True)
        return replace(inside.times(1 / to_sympy(Count(a.of, a.over))), rest=True) if a.kind == "mean" else None


def _is_coarse(h: Hierarchy, of: object) -> bool:
    """Whether what is counted is rows, or what these lie over."""
    return of == h.rows or of in whole_batch(h).coarser(h.rows)


def _reads_within(h: Hierarchy, formula: Expression, of: Stratum) -> bool:
    """Whether everything that a formula gathers lies within the element of a stratum at which it is read."""
    gathered = (a for a in atoms(formula) if isinstance(a, (Aggregate, Ordered)) or _is_sampled_count(h, a))
    places = (of, *whole_batch(h).finer(of))
    return all(a.over in places for a in gathered)  # type: ignore[attr-defined]


def _is_sampled_count(h: Hierarchy, a: Expression) -> bool:
    return isinstance(a, (Count, Total)) and a.over is not None and not _is_coarse(h, a.of)
