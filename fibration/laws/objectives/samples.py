"""Which samples a formula at a token reads: the token, earlier and later tokens of its row, other rows.

The formula inside a statistic or an order decides: a sum over earlier tokens of the row's mean reads the whole row. So
`Samples` follows places inwards. A place has the set of tokens that may lie there, as seen from the outermost token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fibration.language.atoms import Attribute, Component, Count, Gathered, Parameter, Stratum, Total, advantage, reward
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, Ordered, atoms_within
from fibration.language.traversal import atoms

When = Literal["earlier", "now", "later", "others"]  # tokens of the row, relative to the token; tokens of other rows
What = Literal["value", "number", "reward"]  # log-probs, attributes and advantages; how many tokens there are; rewards
Reads = frozenset[tuple[When, What]]
ROW: frozenset[When] = frozenset({"earlier", "now", "later"})
OTHERS: frozenset[When] = frozenset({"others"})
EVERYWHERE = ROW | OTHERS
AHEAD: frozenset[When] = frozenset({"now", "later"})  # not part of the state


@dataclass(frozen=True)
class Place:
    """Where a formula is read: at an element of `of` (None: a token), perhaps one of several inside a statistic.

    `tokens`: the tokens that may lie over the element, and over the `within` element that it lies over.
    """

    tokens: frozenset[When]
    of: Stratum | None = None
    within: Stratum | None = None


HERE = Place(frozenset({"now"}))


@dataclass(frozen=True)
class Samples:
    """The samples that formulas of a hierarchy read. `by_token`: rewards belong to tokens, else to rows."""

    h: Hierarchy
    by_token: bool = True

    def of(self, formula: Expression, place: Place = HERE) -> Reads:
        """What a formula reads at a place."""
        return frozenset(read for atom in atoms(formula) for read in self.of_atom(atom, place))

    def of_atom(self, a: Expression, place: Place) -> Reads:
        if isinstance(a, Aggregate):
            inside = self.gathered(a, place)
            return self.of(a.formula, inside) | self._number(a.of, inside.tokens)
        if isinstance(a, Ordered):
            inside = self.ordered(a, place)
            return self.of(a.formula, inside) | self._number(a.of, inside.tokens)
        if isinstance(a, (Count, Total)):
            return self._measured(a, place)
        if isinstance(a, Attribute):
            return frozenset() if self.is_coarse(a.on) else _each("value", place.tokens - {"now"})
        if isinstance(a, (Parameter, Component)):
            return frozenset()
        if a == reward:
            whole = place.of is not None or not self.by_token
            return _each("reward", place.tokens | ROW if whole and place.tokens & ROW else place.tokens)
        if a == advantage and place.of is not None:  # the advantage of the row
            return _each("value", place.tokens - {"earlier", "later"})
        return _each("value", place.tokens)

    def _measured(self, a: Count | Total, place: Place) -> Reads:
        """What a count or total reads: how many tokens there are is sampled; rows and their attributes are given."""
        over = place.of if a.over is None else a.over
        if self.is_coarse(a.of):
            return frozenset()
        if over is None or over == a.of:
            return frozenset() if isinstance(a, Count) else self.of_atom(a.attribute, place)
        tokens = self._over(over, place)
        values = _each("value", tokens - {"now"}) if isinstance(a, Total) else frozenset()
        return self._number(a.of, tokens) | values

    def gathered(self, a: Gathered, place: Place) -> Place:
        """Where the formula of a statistic is read."""
        assert isinstance(a, Aggregate)
        over, of = a.over or place.of, a.of if isinstance(a.of, Stratum) else None
        if a.others and self.is_coarse(of) and not place.tokens & OTHERS:
            return Place(OTHERS, of, of)
        within = place.within if self._is_inside(over, place) else over if isinstance(over, Stratum) else None
        return Place(self._over(over, place), of, within)

    def ordered(self, o: Ordered, place: Place) -> Place:
        """Where the formula of an order is read. Within a row, an earlier element ends before the next one begins."""
        of, inside = o.of if isinstance(o.of, Stratum) else None, self._is_inside(o.over, place)
        if self.is_coarse(of):
            apart = not place.tokens & OTHERS or (inside and not place.tokens & ROW)
            return Place(OTHERS if apart else EVERYWHERE, of, of)
        if not (of is None or self._is_in_row(of)):  # its elements have tokens of all rows, before and after
            return Place(EVERYWHERE, of, of)
        found = frozenset[When]().union(*(_beside(when, o.is_forward) for when in place.tokens))
        if not inside and not self._is_in_row(o.over):
            found |= EVERYWHERE if place.tokens & OTHERS else OTHERS
        return Place(found & place.tokens if inside else found, of, of)

    def _over(self, over: object, place: Place) -> frozenset[When]:
        """The tokens over the element of a stratum at a place, or below it."""
        if self._is_inside(over, place):
            return place.tokens
        if not self._is_in_row(over):
            return EVERYWHERE
        return (ROW if place.tokens & ROW else frozenset()) | (place.tokens & OTHERS)

    def _is_inside(self, over: object, place: Place) -> bool:
        """Whether nothing but `place.tokens` lies over the element of a stratum at a place, or below it."""
        if over is None or over in self.h.leaves or over == place.of:
            return True
        return place.within is not None and (over == place.within or place.within in self._coarser(over))

    def granted(self, formula: Expression) -> str:
        """The assumption, in words, on elements within a row that a formula orders; empty if there are none."""
        ordered = (a.of for a in atoms_within(formula, Ordered) if a.of is not None)
        turns = any(not self.is_coarse(of) and self._is_in_row(of) for of in ordered)
        return ", where what comes before an element ends before it begins" if turns else ""

    def is_coarse(self, of: object) -> bool:
        """Whether `of` is the rows or a stratum that they lie over: further tokens add no elements to it."""
        return of == self.h.rows or of in self._coarser(self.h.rows)

    def _is_in_row(self, over: object) -> bool:
        return over == self.h.rows or self.h.rows in self._coarser(over)

    def _coarser(self, of: object) -> Iterable[object]:
        shape = whole_batch(self.h)
        return shape.coarser(of) if of in shape.strata else ()  # type: ignore[arg-type]

    def _number(self, of: object, tokens: frozenset[When]) -> Reads:
        return frozenset() if self.is_coarse(of) else _each("number", tokens - {"now"})


def of_tokens(h: Hierarchy, formula: Expression) -> bool:
    """Whether rewards belong to tokens: some sum over tokens of a row, all or some of them, reads rewards."""
    sums = (
        a
        for a in atoms_within(formula)
        if isinstance(a, Ordered)
        or (isinstance(a, Aggregate) and a.kind == "total" and (a.over == h.rows or not Samples(h).is_coarse(a.over)))
    )
    return any(reward in atoms(a.formula) for a in sums if a.of is None)


def _each(what: What, tokens: Iterable[When]) -> Reads:
    return frozenset((when, what) for when in tokens)


def _beside(when: When, forward: bool) -> frozenset[When]:
    """Which tokens may come before (`forward`) or after a token of this kind."""
    if when == "others":
        return OTHERS
    one: When = "earlier" if forward else "later"
    return frozenset({one}) if when in ("now", one) else ROW
