"""Which elements are known to exist, from the populations of a hierarchy and from known signs of counts and totals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fibration.language.atoms import Count, Stratum, Total
from fibration.language.operators import POSITIVE, ZERO, Signs
from fibration.language.polynomials import Polynomial
from fibration.language.statistics import Aggregate
from fibration.language.sympy_bridge import ATOM_OF, atom_expression
from fibration.laws.signs.gathered import number_of
from fibration.laws.signs.populations import Pair, Populations


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
