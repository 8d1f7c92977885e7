"""Which elements exist: facts about a shape, what signs of counts add to them, and where statistics read formulas.

Every element has a token over it, and every token is an element of one leaf. On a chain every count is at least 1; in a
tree a branch may be empty. A formula inside a statistic is read at other elements than the statistic: a count that is
above 0 at an image token may be 0 in another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fibration.language.atoms import Count, Stratum, Summary, Total, at
from fibration.language.expressions import Expression
from fibration.language.operators import POSITIVE, ZERO, Signs
from fibration.language.polynomials import Polynomial
from fibration.language.statistics import Aggregate
from fibration.language.strata import Populated, Shape
from fibration.language.sympy_bridge import ATOM_OF, atom_expression

Pair = tuple[Stratum, Stratum]  # elements of the first over one element of the second
HAVE_A_VALUE_OF_NONE = ("total", "some")  # without elements: 0, and false


class Populations:
    """What is known of the number of elements of one stratum over an element of another."""

    def __init__(self, shape: Shape, populated: Iterable[Populated] = ()) -> None:
        self.shape = shape
        self.populated = tuple(populated)
        self._always: dict[tuple[Stratum, Stratum, Stratum | None], bool] = {}

    @cached_property
    def coarser(self) -> dict[Stratum, frozenset[Stratum]]:
        """For every stratum, itself and all coarser ones."""
        return {s: frozenset((s, *self.shape.coarser(s))) for s in self.shape.strata}

    @cached_property
    def leaves(self) -> dict[Stratum, frozenset[Stratum]]:
        return {s: self.shape.leaves_over(s) for s in self.shape.strata}

    def knows(self, *strata: object) -> bool:
        return all(s in self.coarser for s in strata)

    def always(self, of: Stratum, over: Stratum, at: Stratum | None = None) -> bool:
        """Whether an `of` element lies over every `over` element, or over each that lies below an `at` element."""
        if not self.knows(of, over):
            return self.shape.is_chain
        key = of, over, at
        if key not in self._always:
            here = self.coarser.get(at, frozenset()) if at is not None else frozenset()
            self._always[key] = self._filled(of, over) or any(
                over in self.coarser[s] and self._filled(of, s) for s in here
            )
        return self._always[key]

    def _filled(self, of: Stratum, over: Stratum) -> bool:
        """Whether there is an `of` element over every `over` element."""
        return (of, over) in self._pairs

    @cached_property
    def _pairs(self) -> frozenset[Pair]:
        strata = self.shape.strata
        found = {(s, t) for s in strata for t in self.coarser[s] if self.leaves[t] <= self.leaves[s]}
        found |= {(s, a.over) for a in self.populated for s in self.coarser[a.stratum] if a.over in self.coarser[s]}
        while True:  # if over every c lies a b, and over every b an a, over every c lies an a
            more = {(a, c) for a, b in found for b2, c in found if b == b2}
            more |= {(s, c) for a, c in found for s in self.coarser[a] if c in self.coarser[s]}
            if more <= found:
                return frozenset(found)
            found |= more

    def implies(self, known: Pair, asked: Pair) -> bool:
        """Whether `asked` has an element if `known` has one, both read at the same element."""
        return self.knows(*known, *asked) and asked[0] in self.coarser[known[0]] and asked[1] in self.coarser[known[1]]

    def at_most(self, small: Pair, large: Pair) -> bool:
        """count(X over Y) <= count(X' over Y') when every X has an X' over it, and Y lies over Y'."""
        return (
            self.knows(*small, *large)
            and large[1] in self.coarser[small[1]]
            and small[0] in self.coarser[large[0]]
            and self._filled(large[0], small[0])
        )

    def together(self, of: Iterable[Stratum], over: Stratum, without: Iterable[Stratum] = ()) -> bool:
        """Whether each token over an `over` element lies over one of `of`, if no token lies over `without`."""
        if not self.knows(over):
            return False
        parts, absent = ([self.leaves[s] for s in strata if self.knows(s)] for strata in (of, without))
        return self.leaves[over].difference(*absent) <= frozenset[Stratum]().union(*parts)

    @cached_property
    def depth(self) -> dict[Stratum, int]:
        """The length of the longest way down from every stratum."""
        found: dict[Stratum, int] = {}
        for s in self.shape.order:
            found[s] = max((found[f.target] + 1 for f in self.shape.below(s)), default=0)
        return found


@dataclass(frozen=True)
class Presence:
    """Whether `of` elements lie over an `over` element, as read at the elements of `at`.

    `counted` has the known signs of numbers of elements. They hold at one element, where a formula is read.
    """

    populations: Populations
    at: Stratum | None
    counted: tuple[tuple[Pair, Signs], ...]

    def present(self, of: Any, over: Any) -> bool:
        """Whether at least one `of` element lies over the `over` element."""
        if self.populations.always(of, over, self.at):
            return True
        if any(signs == POSITIVE and self.populations.implies(p, (of, over)) for p, signs in self.counted):
            return True
        return self._some_absent and self.populations.together([of], over, self._without(over))

    def absent(self, of: Any, over: Any) -> bool:
        """Whether no `of` element lies over the `over` element."""
        return any(signs == ZERO and self.populations.implies((of, over), p) for p, signs in self.counted)

    def may_be_of_none(self, atom: Aggregate) -> bool:
        """Whether a statistic may have no elements. A statistic of tokens always has one."""
        number = number_of(atom)
        return number is not None and not self.present(number.of, number.over)

    def one_present(self, p: Polynomial) -> Iterator[list[Pair]]:
        """Lists of pairs of which at least one has an element, though it is not known which one."""
        pairs = {pair for a in p.atoms if (pair := counted(atom_expression(a))) and not self.present(*pair)}
        for over in sorted({over for _, over in pairs}, key=str):
            of = sorted((o for o, v in pairs if v == over), key=str)
            if self.populations.together(of, over, self._without(over)):
                yield [(o, over) for o in of]

    @cached_property
    def _some_absent(self) -> bool:
        return any(signs == ZERO for _, signs in self.counted)

    def _without(self, over: Any) -> list[Any]:
        """The strata that have no element over the `over` element."""
        implies = self.populations.implies
        return [of for (of, below), signs in self.counted if signs == ZERO and implies((of, over), (of, below))]


def counted(s: Any) -> Pair | None:
    """For a count or the total of a positive attribute: `of` and `over`, as any `of` element makes it positive."""
    atom = ATOM_OF.get(s)
    if isinstance(atom, Count) or (isinstance(atom, Total) and atom.attribute.positive):
        return atom.of, atom.over  # type: ignore[return-value]
    return None


# ---------------------------------------------------------------- statistics


def places(atom: Summary, shape: Shape) -> tuple[Stratum, ...]:
    """The strata at whose elements the formula is read: those of `of`, or the leaves over the `over` element.

    If the shape lacks `over` (rows, groups, the batch), that is every leaf.
    """
    if isinstance(atom.of, Stratum):
        return (atom.of,)
    known = isinstance(atom.over, Stratum) and atom.over in shape.strata
    over = shape.leaves_over(atom.over) if known else shape.leaves  # type: ignore[arg-type]
    return tuple(leaf for leaf in shape.leaves if leaf in over)


def formulas(atom: Summary, shape: Shape) -> Iterator[tuple[Stratum, Expression]]:
    """Every stratum at whose elements the formula is read, and the formula as it is read there."""
    for place in places(atom, shape):
        yield place, at(atom.formula, place)


def number_of(atom: Expression) -> Count | None:
    """The number of elements that a statistic gathers; None for tokens, of which it always has one."""
    if not isinstance(atom, Aggregate) or not isinstance(atom.of, Stratum):
        return None
    return Count(atom.of, atom.over)
