"""Which counts are at least 1, and which is at most which: facts about a shape that hold for every batch.

Every element has a token over it, and every token is an element of one leaf. On a chain every count is at least 1; in a
tree a branch may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from fibration.assumptions import Populated
from fibration.shape import Shape
from fibration.symbols import Stratum

Pair = tuple[Stratum, Stratum]  # elements of the first over one element of the second


class Populations:
    """What is known of the number of elements of one stratum over an element of another."""

    def __init__(self, shape: Shape, populated: Iterable[Populated] = ()) -> None:
        self.shape = shape
        self.populated = tuple(populated)
        self._always: dict[tuple[Stratum, Stratum, Stratum | None], bool] = {}

    @cached_property
    def coarser(self) -> dict[Stratum, frozenset[Stratum]]:
        """Of every stratum, itself and every coarser one."""
        return {s: frozenset((s, *self.shape.coarser(s))) for s in self.shape.strata}

    @cached_property
    def leaves(self) -> dict[Stratum, frozenset[Stratum]]:
        return {s: self.shape.leaves_over(s) for s in self.shape.strata}

    def knows(self, *strata: object) -> bool:
        return all(s in self.coarser for s in strata)

    def always(self, of: Stratum, over: Stratum, at: Stratum | None = None) -> bool:
        """Whether an `of` element certainly lies over the `over` element (that is read at an element of `at`)."""
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
        if over not in self.coarser[of]:
            return False
        if self.leaves[over] <= self.leaves[of]:
            return True
        return any(
            of in self.coarser[a.stratum] and over in self.coarser[a.over] and self._filled(a.over, over)
            for a in self.populated
        )

    def implies(self, known: Pair, asked: Pair) -> bool:
        """Whether an element of the first pair makes one of the second, both read at the same element."""
        return self.knows(*known, *asked) and asked[0] in self.coarser[known[0]] and asked[1] in self.coarser[known[1]]

    def at_most(self, small: Pair, large: Pair) -> bool:
        """count(X over Y) <= count(X' over Y') when every X has an X' over it, and Y lies over Y'."""
        return (
            self.knows(*small, *large)
            and large[1] in self.coarser[small[1]]
            and small[0] in self.coarser[large[0]]
            and self._filled(large[0], small[0])
        )

    def together(self, of: Iterable[Stratum], over: Stratum) -> bool:
        """Whether each token over an `over` element lies over one of these: they are not all absent."""
        parts = [self.leaves[s] for s in of if self.knows(s)]
        return self.knows(over) and self.leaves[over] <= frozenset().union(*parts)

    @cached_property
    def depth(self) -> dict[Stratum, int]:
        """The length of the longest way down from every stratum."""
        found: dict[Stratum, int] = {}
        for s in self.shape.order:
            found[s] = max((found[f.target] + 1 for f in self.shape.below(s)), default=0)
        return found
