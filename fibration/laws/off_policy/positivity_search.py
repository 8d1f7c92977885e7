"""Searches gated ratios that are not positive, or have no value, on small batches of hierarchies of any shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any

from fibration.language.atoms import Stratum, advantage
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.traversal import atoms
from fibration.laws.batches import caps
from fibration.laws.batches.direct_operator import DirectOperator, formulas
from fibration.laws.batches.first_update import directions
from fibration.laws.batches.search import concretes, find
from fibration.laws.batches.words import Witness
from fibration.laws.values.intervals import Interval, Unsure, enclose, interval
from fibration.laws.values.numerals import in_full, rounded

FEW, OFTEN = 6, 2  # batches of more than FEW tokens: at most OFTEN values of parameters and attributes
SIZES = tuple(Fraction(n) for n in ("1/8", "1", "7", "30"))  # of log ratios
BUDGETS = (2000, 500)  # how many tokens each round evaluates in all


class Certain(DirectOperator):
    """`𝒢` between bounds. Raises `Unsure` if the bounds do not decide a comparison."""

    @cached_property
    def mass(self) -> Any:
        def inside(a: Stratum, e: int) -> Interval:
            return enclose(self.h.masses[a], lambda atom: self.concrete.atom(atom, a, e))  # type: ignore[no-any-return]

        return {s: [inside(s, e) if ks else None for e, ks in enumerate(found)] for s, found in self.fibres.items()}

    def read(self, expression: Expression, atom: Callable[[Expression], Any]) -> Any:
        return enclose(expression, atom)


def ratio_not_positive(h: Hierarchy) -> Witness | None:
    """A witness with log ratios, small or far apart, of which one has a gated ratio of 0 or less, or none."""
    if h.orthogonalise is not None:
        return None
    read = formulas(h)
    signs = (Fraction(1), Fraction(-1)) if any(advantage in atoms(e) for e in read) else (Fraction(1),)
    tried = list(_in_moderation(Certain(h, c) for c in concretes(h, read, caps.POSITIVITY)))
    return find(_points(list(itertools.product(tried, signs))), lambda point: _refused(*point))


def _points(tried: list[tuple[Certain, Fraction]]) -> Iterator[tuple[Certain, Fraction, tuple[Fraction, ...]]]:
    for log_ratios, left in zip((_extreme, _of_all_sizes), BUDGETS, strict=True):
        for dense, a in tried:
            for xs in log_ratios(len(dense.tokens)):
                left -= len(xs)
                if left >= 0:
                    yield dense, a, xs


def _in_moderation(found: Iterator[Certain]) -> Iterator[Certain]:
    """Yields all small batches, and a few for each larger shape."""
    for _, alike in itertools.groupby(found, key=lambda dense: dense.concrete.maps):
        yield from (dense for k, dense in enumerate(alike) if k < OFTEN or len(dense.tokens) <= FEW)


def _extreme(n: int) -> Iterator[tuple[Fraction, ...]]:
    """Yields log ratios with all tokens far on one side, then with one token far on the other."""
    far, other = SIZES[-2:]
    for sign in (1, -1):
        yield (sign * far,) * n
        if n > 1:
            yield (sign * other, *(-sign * far,) * (n - 1))


def _of_all_sizes(n: int) -> Iterator[tuple[Fraction, ...]]:
    for direction in directions(n) if n <= FEW else ():
        yield from (tuple(size * d for d in direction) for size in SIZES)


def _refused(dense: Certain, a: Fraction, xs: tuple[Fraction, ...]) -> Witness | None:
    """A witness that a gated ratio is certainly not positive, or that `𝒢` has no value."""
    try:
        found = dense.ratios(xs, [a] * len(xs))
    except NoValue:
        return _witness(dense, xs, a, None, None)
    except Unsure:
        return None
    for k, ratio in enumerate(found):
        value = interval(ratio)  # type: ignore[arg-type]
        if value.high <= 0:
            return _witness(dense, xs, a, k, rounded(value.middle, value.high - value.low))
    return None


def _witness(
    dense: DirectOperator, xs: tuple[Fraction, ...], a: Fraction, token: int | None, ratio: Fraction | None
) -> Witness:
    h, concrete = dense.h, dense.concrete
    extra = f", advantage {a}" if any(advantage in atoms(h.gate(s)) for s in h.order) else ""
    xs_shown = f"all log ratios {xs[0]}" if len(set(xs)) == 1 < len(xs) else f"log ratios {', '.join(map(str, xs[:8]))}"
    more = ", …" if len(set(xs)) > 1 and len(xs) > 8 else ""
    got = "no value" if ratio is None else f"the gated ratio {in_full(ratio)}"
    who = f"token {token + 1} gets {got}" if token is not None and len(xs) > 1 else f"the token gets {got}"
    text = f"on {concrete.describe(h.roots[0])}{extra}{concrete.chosen}, with {xs_shown}{more}: {who}"
    return Witness(text, concrete, {"advantage": a, "log_ratios": xs, "token": token, "gated": ratio})
