"""Assumptions of a hierarchy about every batch. Proofs use them, and every index is checked against them."""

from __future__ import annotations

from fibration.errors import SpecError, declare
from fibration.language.atoms import Stratum
from fibration.language.declared import Declared


class Balanced(Declared):
    """The assumption that strata cross in proportional frequencies: `m(a∩b)·m(c) = m(a)·m(b)` over each common `c`."""

    first: Stratum
    second: Stratum

    def __repr__(self) -> str:
        return f"balanced({self.first!r}, {self.second!r})"


class Populated(Declared):
    """The assumption that every element of `over` has an element of `stratum`: no branch of a tree is empty."""

    stratum: Stratum
    over: Stratum

    def __repr__(self) -> str:
        return f"populated({self.stratum!r}, over={self.over!r})"


Assumption = Balanced | Populated


def balanced(first: Stratum, second: Stratum) -> Balanced:
    """Returns the assumption that two strata cross in proportional frequencies, as with equal counts in all cells.

    Residuals of finer strata are then orthogonal to both strata (theory of crossed designs). `op.index` raises
    HierarchyIndexError for a batch that breaks the assumption, and names the worst cell.
    """
    _check("balanced", first, second)
    return Balanced(first=first, second=second)


def populated(stratum: Stratum, *, over: Stratum) -> Populated:
    """Returns the assumption that every element of `over` has at least one element of `stratum`.

    `op.index` raises HierarchyIndexError for a batch that breaks it.
    """
    _check("populated", stratum, over)
    return Populated(stratum=stratum, over=over)


def _check(what: str, *strata: object) -> None:
    for s in strata:
        if not isinstance(s, Stratum):
            raise SpecError(
                f"{what} takes strata, not {s!r}", required="a Stratum", remedy=declare("strata", s, "domain")
            )
    if strata[0] == strata[1]:
        raise SpecError(
            f"{what} takes two different strata",
            required="two different strata",
            found=f"{strata[0]!r} twice",
            remedy="balanced(domain, modality), or populated(image_token, over=trajectory)",
        )
