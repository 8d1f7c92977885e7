"""Batches of any size in which all tokens but one are alike, so that a token's coefficient is found exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.strata import Populated
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.first_update import gates_alone
from fibration.laws.batches.search import usual
from fibration.laws.batches.shapes import edges

Span = tuple[Expression | None, Expression | None]  # where log ratios may lie; None where it has no end
PLACES = tuple(Fraction(n, 1000) for n in (1, 500, 1000))  # within a span
DRIFTS = tuple(Fraction(s * n, 20) for n in (1, 4, 20, 200) for s in (1, -1))


def crowd(h: Hierarchy, tokens: int) -> Concrete:
    """A batch of one token and `tokens - 1` equal ones, over one element of everything else; default parameters.

    Leaves other than the first have no token, unless the hierarchy assumes that branches are populated.
    """
    shape = whole_batch(h)
    leaf = h.leaves[0]
    full = shape.strata if any(isinstance(a, Populated) for a in h.assume) else (leaf, *shape.coarser(leaf))
    size = {s: int(s in full) for s in shape.strata} | {leaf: 2}
    maps = {(s, t): (0,) * size[s] for s, t in edges(shape)}
    attributes = {a: (a.nearest(Fraction(1)),) * size[a.on] for a in h.attributes.values()}
    return Concrete(shape, maps, attributes, usual(h), {leaf: (1, tokens - 1)})


def pull(h: Hierarchy, concrete: Concrete, log_ratios: Sequence[Fraction], a: Fraction) -> Fraction:
    """The largest `|c_i|/(μ_i·|a|)` where all advantages are `a`; 0 if a value is missing or has too many digits."""
    try:
        point = Point(h, concrete, tuple(log_ratios), (a,) * len(log_ratios))
        return max((abs(c / m / a) for c, m in zip(point.coefficients, point.weights, strict=True) if m), default=a * 0)
    except (NoValue, TooLarge):
        return Fraction(0)


def strongest(
    h: Hierarchy, spans: Sequence[Span], apart: bool, sides: Sequence[int], sizes: Sequence[int]
) -> list[Fraction]:
    """The largest pull in crowds of each size, with the log ratios that are best in the first crowd.

    All tokens have one log ratio, in one of the spans. `apart`: other log ratios are tried too, and one token that
    drifts alone, or away from all others.
    """
    # least squares and the recursion agree where everything lies over one element
    plain = gates_alone(h if h.orthogonalise is None else h.replace(orthogonalise=None))
    best: tuple[int, int] | None = None
    found = []
    for n in sizes:
        concrete = crowd(plain, n)
        batches = list(_log_ratios(plain, concrete, spans, apart, n))
        chosen = [(k, a) for k in range(len(batches)) for a in sides] if best is None else [best]
        pulls = [(pull(plain, concrete, batches[k], Fraction(a)), (k, a)) for k, a in chosen]
        most, best = max(pulls, default=(Fraction(0), None), key=lambda found: found[0])
        found.append(most)
    return found


def _log_ratios(
    h: Hierarchy, concrete: Concrete, spans: Sequence[Span], apart: bool, tokens: int
) -> Iterator[tuple[Fraction, ...]]:
    others = concrete.tokens - 1
    for span in spans:
        ends = [None if e is None else concrete.attempt(e, h.roots[0], 0) for e in span]
        low, high = (o if v is None and o is not None else v for v, o in (ends, ends[::-1]))
        if low is not None and high is not None:
            yield from ((low + t * (high - low),) * (1 + others) for t in PLACES)
    for x in DRIFTS if apart else ():
        yield from ((x, *[y] * others) for y in (x, Fraction(0), -x / max(tokens - 1, 1)))
