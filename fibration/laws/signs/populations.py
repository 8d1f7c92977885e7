"""Which counts are at least 1, and which count is at most which: facts about a shape that hold for every batch.

Every element has a token over it, and every token is an element of one leaf. On a chain every count is at least 1; in a
tree a branch may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from fibration.language.assumptions import Populated
from fibration.language.atoms import Stratum
from fibration.language.strata import Shape

Pair = tuple[Stratum, Stratum]  # elements of the first over one element of the second


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
