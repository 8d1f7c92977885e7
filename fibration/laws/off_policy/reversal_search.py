"""Searches small batches, in exact rationals, for a token that is pushed further out against its own advantage.

Such a token has drifted, its advantage leads back, and its coefficient leads further out: `A·x < 0 < c·x`. All tokens
of a row have one advantage.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial

from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.laws.batches.coefficients import Point, attempt, formulas, rows_of
from fibration.laws.batches.concrete import Concrete, Witness, coefficients_are, in_batch, rounding
from fibration.laws.batches.search import find, leaves_one_alone, smallest, usual
from fibration.laws.values.numerals import named, rounded

MOST_SHAPES = 12  # of batches of one size
SAMPLED = {2: 150, 3: 150, 4: 100}  # points of batches of so many tokens; of a single token all
SHARES = tuple(Fraction(s, 20) for s in (20, 12, 2, 1, -10))  # of the largest drift
BEYOND = (Fraction(21, 20), Fraction(3, 2), Fraction(4))  # times the default of a parameter
CLOSE = Fraction(1, 10**20)  # a coefficient of at most this size has no sign, where numbers are rounded
Tried = tuple[Concrete, tuple[Fraction, ...], tuple[Fraction, ...]]  # a batch, advantages and log ratios of its tokens


def reversed_token(h: Hierarchy, far: Sequence[Fraction] = ()) -> Witness | None:
    """The smallest batch found with a token that is pushed against its own advantage, or None.

    Declared advantages are those of rewards 0 and 1. Residuals of a least-squares fit are not searched. `far`: further
    sizes of log ratios.
    """
    if h.orthogonalise is not None:
        return None
    return find(_tried(h, far), partial(_witness, h))


def _tried(h: Hierarchy, far: Sequence[Fraction]) -> Iterator[Tried]:
    """Yields the points of single tokens, then random points of larger batches, the same in every run."""
    sizes, rng = [*_sizes(h), *far], random.Random(0)
    yield from ((c, a, (t * d,)) for c in _batches(h, 1) for a in _advantages(h, c) for t in sizes for d in (1, -1))
    for n in SAMPLED:
        each = [(c, found) for c in _batches(h, n) if (found := list(_advantages(h, c)))]
        for _ in range(SAMPLED[n] if each else 0):
            concrete, advantages = rng.choice(each)
            first, size = rng.randrange(n), rng.choice(sizes) * rng.choice((1, -1))
            drift = tuple(size * (rng.choice(SHARES) if k != first else 1) for k in range(n))
            yield concrete, rng.choice(advantages), drift


def _batches(h: Hierarchy, tokens: int) -> Iterator[Concrete]:
    """Yields batches of this many tokens that an index takes."""
    found = itertools.islice(smallest(h, whole_batch(h), tokens), MOST_SHAPES)
    return (c for c in found if not leaves_one_alone(h, c))


def _advantages(h: Hierarchy, concrete: Concrete) -> Iterator[tuple[Fraction, ...]]:
    """Yields advantages of tokens: of rows 1 and -1, or one of them 3 or -3; or the declared ones of such rewards."""
    rows, number = rows_of(h, concrete), concrete.size[h.rows]
    for signs, large in itertools.product(
        itertools.product((1, -1), repeat=number), range(number if number > 1 else 1)
    ):
        of_rows = tuple(Fraction(s * (3 if r == large and number > 1 else 1)) for r, s in enumerate(signs))
        given = tuple(of_rows[r] for r in rows)
        here = Point.alike(h, concrete, given)
        if found := attempt(lambda here=here: here.with_advantages.advantages):  # type: ignore[misc]
            yield tuple(found)


def _sizes(h: Hierarchy) -> list[Fraction]:
    """How far the token drifts that drifts most: beyond the defaults of parameters, and 1."""
    values = sorted({abs(v) for v in usual(h).values() if v})[:3]
    return sorted({*(v * f for v in values for f in BEYOND), Fraction(1)})


def _witness(h: Hierarchy, tried: Tried) -> Witness | None:
    concrete, advantages, log_ratios = tried
    if not any(a * x < 0 for a, x in zip(advantages, log_ratios, strict=True)):
        return None
    point = Point(h, concrete, log_ratios, advantages)
    found = attempt(lambda: point.coefficients)
    each = enumerate(zip(found or (), advantages, log_ratios, strict=found is not None))
    token = next((k for k, (c, a, x) in each if abs(c) > CLOSE and c * x > 0 > a * x), None)
    if found is None or token is None:
        return None
    exact = rounding(*formulas(h), h.objective.spelled_out(h.leaves, h.rows))
    coefficients = tuple(rounded(c, exact) for c in found)
    text = (
        f"{in_batch(h, concrete)} with {named('advantage', *advantages)} and {named('log ratio', *log_ratios)}, "
        f"{coefficients_are(*coefficients)}: token {token + 1} is pushed further out, against its advantage"
    )
    values = {"advantages": advantages, "log_ratios": log_ratios, "coefficients": coefficients, "token": token}
    return Witness.on(concrete, text, values)
