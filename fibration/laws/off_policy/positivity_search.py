"""Searches gated ratios that are not positive, or have no value, on small batches of hierarchies of any shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from fibration.language.atoms import Summary, advantage, gated, in_channel, residual
from fibration.language.declared import LogProb
from fibration.language.exact import NoValue
from fibration.language.expressions import as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import log
from fibration.language.traversal import atoms, evaluate
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, formulas
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.first_update import directions
from fibration.laws.batches.search import concretes, find
from fibration.laws.values.intervals import INTERVALS, Unsure
from fibration.laws.values.numerals import in_full, rounded

FEW, OFTEN = 6, 2  # batches of more than FEW tokens: at most OFTEN values of parameters and attributes
RATIOS = tuple(Fraction(n, 1000) for n in (1, 125, 250, 500, 750, 875, 1000, 1250, 1500, 5000, 10**5, 10**9))
SIZES = tuple(Fraction(n) for n in ("1/8", "1", "7", "30"))  # of log ratios
BUDGETS = (2000, 500)  # how many tokens each round evaluates in all


def of_one_token(h: Hierarchy, known: str) -> Witness | None:
    """One of `RATIOS` whose gated ratio, on one token, is not positive or has no value; else None."""
    [leaf] = h.order
    gate, scale = in_channel(h.gate(leaf), ""), h.with_mass(h.decomposition.scale, leaf)
    recovery = h.with_mass(h.decomposition.recovery, leaf)
    reads_tokens = bool(atoms(gate, LogProb, Summary))
    if known not in ("log", "deviation") or reads_tokens:
        return None
    drifts = [r - 1 if known == "deviation" else evaluate(log(as_expression(r)), {}) for r in RATIOS]
    exact = rounding(gate, recovery)

    def fails(concrete: Concrete) -> Witness | None:
        unit = concrete.attempt(scale, leaf, 0)
        if unit is None:
            return None
        for a, (r, drift) in itertools.product((Fraction(1), Fraction(-1)), zip(RATIOS, drifts, strict=True)):
            g = concrete.attempt(gate, leaf, 0, {residual: unit * drift, advantage: a})
            value = None if g is None else concrete.attempt(recovery, leaf, 0, {gated(""): g})
            if value is None or value <= -exact:
                value = value and rounded(value, exact)
                got = "no value" if value is None else f"the gated ratio {in_full(value)}"
                text = f"a token with ratio {r} and advantage {a}{concrete.chosen} gets {got}"
                return Witness(text, concrete, {"ratio": r, "advantage": a, "gated": value})
        return None

    return find(concretes(h, [gate, recovery, scale], caps.POSITIVITY_OF_ONE_TOKEN), fails)


def ratio_not_positive(h: Hierarchy) -> Witness | None:
    """A witness with log ratios, small or far apart, of which one has a gated ratio of 0 or less, or none."""
    if h.orthogonalise is not None:
        return None
    read = formulas(h)
    signs = (Fraction(1), Fraction(-1)) if any(advantage in atoms(e) for e in read) else (Fraction(1),)
    tried = list(_in_moderation(concretes(h, read, caps.POSITIVITY)))
    return find(_points(h, list(itertools.product(tried, signs))), _refused)


def _points(h: Hierarchy, tried: list[tuple[Concrete, Fraction]]) -> Iterator[Point]:
    for log_ratios, left in zip((_extreme, _of_all_sizes), BUDGETS, strict=True):
        for concrete, a in tried:
            for xs in log_ratios(concrete.tokens):
                left -= len(xs)
                if left >= 0:
                    yield Point(h, concrete, xs, (a,) * len(xs), domain=INTERVALS)


def _in_moderation(found: Iterator[Concrete]) -> Iterator[Concrete]:
    """Yields all small batches, and a few for each larger shape."""
    for _, alike in itertools.groupby(found, key=lambda concrete: concrete.maps):
        yield from (concrete for k, concrete in enumerate(alike) if k < OFTEN or concrete.tokens <= FEW)


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


def _refused(point: Point) -> Witness | None:
    """A witness that a gated ratio is certainly not positive, or that `𝒢` has no value."""
    try:
        found = point.output("gated_ratio")
    except NoValue:
        return _witness(point, None, None)
    except Unsure:
        return None
    for k, value in enumerate(found):
        if value.high <= 0:
            return _witness(point, k, rounded(value.middle, value.high - value.low))
    return None


def _witness(point: Point, token: int | None, ratio: Fraction | None) -> Witness:
    h, concrete, xs, a = point.h, point.concrete, point.log_ratios, point.advantages[0]
    extra = f", advantage {a}" if any(advantage in atoms(h.gate(s)) for s in h.order) else ""
    xs_shown = f"all log ratios {xs[0]}" if len(set(xs)) == 1 < len(xs) else f"log ratios {', '.join(map(str, xs[:8]))}"
    more = ", …" if len(set(xs)) > 1 and len(xs) > 8 else ""
    got = "no value" if ratio is None else f"the gated ratio {in_full(ratio)}"
    who = f"token {token + 1} gets {got}" if token is not None and len(xs) > 1 else f"the token gets {got}"
    text = f"on {concrete.describe(h.roots[0])}{extra}{concrete.chosen}, with {xs_shown}{more}: {who}"
    return Witness(text, concrete, {"advantage": a, "log_ratios": xs, "token": token, "gated": ratio})
