"""The first update on small batches, in exact rationals: coefficients at `r = 1`, or beside it, that are not `μ·A`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from fibration.errors import an
from fibration.language.atoms import Stratum, advantage, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import exp
from fibration.language.outline import whole_batch
from fibration.language.statistics import Ordered
from fibration.language.traversal import atoms, evaluate
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, attempt, formulas, rows_of
from fibration.laws.batches.concrete import Concrete, Witness, in_batch, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.values.duals import slopes_of, value_of
from fibration.laws.values.numerals import in_brief, rounded, shown

STEPS = (Fraction(1, 10**12), Fraction(1, 10**20), Fraction(1, 10**24))  # of log ratios near 0
MOST_TOKENS = 16  # a larger batch ends the search
FEW_TOKENS = 3  # of a batch that is tried beside r = 1, in many directions
CLOSE = Fraction(1, 10**6)  # tolerance beside r = 1, where a smooth operator differs a little
NO_VALUE = "no value"


def _along(
    h: Hierarchy,
    concrete: Concrete,
    way: Sequence[int],
    advantages: Sequence[Fraction],
    is_off: Callable[[Point], bool],
) -> Point | None:
    """The batch at the first of a few log ratios in a direction from 0, if it is off at each of them, however small."""
    steps = STEPS if any(way) else STEPS[:1]
    points = [Point(h, concrete, tuple(step * d for d in way), advantages) for step in steps]
    return points[0] if all(map(is_off, points)) else None


def _signs(formulas: Sequence[Expression]) -> tuple[Fraction, ...]:
    """The advantages that are tried: 1, and -1 if a formula reads the advantage."""
    return (Fraction(1), Fraction(-1)) if any(advantage in atoms(e) for e in formulas) else (Fraction(1),)


def directions(n: int) -> Iterator[tuple[int, ...]]:
    """One token alone, all of them, one against the others."""
    for sign in (1, -1):
        yield (sign,) * n
        for k in range(n if n > 1 else 0):
            yield tuple(sign * (i == k) for i in range(n))
            yield tuple(sign if i == k else -sign for i in range(n))


# ---------------------------------------------------------------- ratios


def start_not_recovered(h: Hierarchy, leaf: Stratum, whole: Expression) -> Witness | None:
    """A token whose ratio near 1 is not recovered to first order. `whole` is `R∘F` on its leaf."""
    if atoms(whole, Ordered):
        return None  # the coefficients of a batch say more than its own slope
    exact, signs = rounding(whole), _signs([whole])

    def start(point: Point) -> tuple[Fraction, Fraction] | None:
        back = attempt(lambda: point.value_at(whole, leaf, 0, moves=True))
        return None if back is None else (value_of(back), sum(slopes_of(back).values(), Fraction(0)))

    def is_off(point: Point) -> bool:
        close, found = CLOSE if any(point.log_ratios) else exact, start(point)
        return found is None or any(abs(v - 1) > close for v in found)

    def fails(concrete: Concrete) -> Witness | None:
        n = concrete.tokens
        for side, a in itertools.product((0, 1, -1), signs):
            if (point := _along(h, concrete, (side,) * n, (a,) * n, is_off)) is None:
                continue
            found, x = start(point), side * STEPS[0]
            value, slope = (None, None) if found is None else (rounded(v, exact) for v in found)
            got = [NO_VALUE if v is None else in_brief(v) for v in (value, slope)]
            place = "" if leaf in h.roots else f"in {concrete.describe(h.shape.below(leaf)[0].target)}, "
            given = f"log ratio {in_brief(x)}" + (f" and advantage {a}" if len(signs) > 1 else "")
            text = f"{place}{an(leaf)} with {given} comes back as {got[0]} with the slope {got[1]}"
            values: dict[str, Any] = {"leaf": leaf.name, "log_ratio": x, "recovered": value, "slope": slope}
            return Witness.on(concrete, text, values | ({"advantage": a} if len(signs) > 1 else {}))
        return None

    return find((c for c in concretes(h, [whole], caps.FIRST_UPDATE) if c.size[leaf]), fails)


def off_policy(h: Hierarchy) -> Witness | None:
    """Log ratios near 0 whose gated and true ratios differ in proportion to them, however small the log ratios are."""
    read = formulas(h)

    def is_off(point: Point) -> bool:
        found = attempt(lambda: point.gated)
        truth = (evaluate(exp(token_log_ratio), {token_log_ratio: x}) for x in point.log_ratios)
        close = max(map(abs, point.log_ratios)) / 10**6
        return found is None or any(abs(g - r) > close for g, r in zip(found, truth, strict=True))

    def fails(concrete: Concrete) -> Witness | None:
        n = concrete.tokens
        for a, way in itertools.product(_signs(read), directions(n)):
            if (point := _along(h, concrete, way, (a,) * n, is_off)) is None:
                continue
            found = attempt(lambda point=point: point.gated)  # type: ignore[misc]
            given = f", advantage {a}" if any(advantage in atoms(h.gate(s)) for s in h.order) else ""
            got = NO_VALUE if found is None else ", ".join(shown(g - 1) for g in found)
            xs = ", ".join(map(shown, point.log_ratios))
            text = f"on {concrete.describe(h.roots[0])}{given}{concrete.chosen}: log ratios {xs} have 𝒢(r) - 1 = {got}"
            gated = None if found is None else tuple(rounded(g, rounding(*read)) for g in found)
            return Witness(text, concrete, {"advantage": a, "log_ratios": tuple(point.log_ratios), "gated": gated})
        return None

    # residuals of a projection are not evaluated exactly
    return find(concretes(h, read, caps.FIRST_ORDER) if h.orthogonalise is None else (), fails)


# ---------------------------------------------------------------- coefficients


def wrong_coefficients(h: Hierarchy) -> Witness | None:
    """Advantages that are constant on rows, and coefficients `∂J/∂log π` that are not `μ·A`.

    The coefficients are taken at `r = 1`; on a few batches of few tokens also beside it, however close. Weights and
    conditions of tokens are left out: other laws cover them. None if residuals are those of a projection.
    """
    h = gates_alone(h)
    is_signed = len(_signs(_read(h))) > 1

    def fails(tried: Tried) -> Witness | None:
        concrete, way, close = tried

        def is_off(point: Point) -> bool:
            found = attempt(lambda: point.coefficients)
            return not found or any(abs(c - t) > close for c, t in zip(found, _true(point), strict=True))

        points = (_along(h, concrete, way, a, is_off) for a in _advantages(h, concrete, is_signed))
        if (point := next(filter(None, points), None)) is None:
            return None
        alone = (_along(h, concrete, way, a, is_off) for a in _alone(h, concrete))
        return _witness(next(filter(None, alone), point))

    return find(_tried(h), fails)


def opposed_advantage(h: Hierarchy) -> Witness | None:
    """An advantage of one row alone whose coefficients there add up to the other sign, as `wrong_coefficients`."""
    h = gates_alone(h)
    signs = _signs(_read(h))

    def fails(tried: Tried) -> Witness | None:
        concrete, way, close = tried

        def is_opposed(point: Point) -> bool:
            found = attempt(lambda: point.coefficients)
            own = (k for k, a in enumerate(point.advantages) if a)
            return found is not None and sum(found[k] * point.advantages[k] for k in own) < -close

        given = (a for a in _alone(h, concrete) if next(filter(None, a)) in signs)
        points = (_along(h, concrete, way, a, is_opposed) for a in given)
        return next((_witness(point) for point in points if point), None)

    return find(_tried(h), fails)


def gates_alone(h: Hierarchy) -> Hierarchy:
    """The hierarchy without weights and conditions of tokens."""
    plain = Objective(h.objective.weight, estimator=h.objective.estimator)
    return h.replace(objective=plain) if h.objective.formulas else h


Tried = tuple[Concrete, tuple[int, ...], Fraction]  # a batch, a direction from `r = 1`, the tolerance of a coefficient


def _read(h: Hierarchy) -> list[Expression]:
    return [*formulas(h), h.objective.spelled_out(h.leaves, h.rows)]


def _tried(h: Hierarchy) -> Iterator[Tried]:
    """What is tried; nothing if residuals are those of a projection."""
    if h.orthogonalise is not None:
        return
    few: list[Concrete] = []
    exact = rounding(*_read(h))
    found = concretes(h, _read(h), caps.FIRST_UPDATE, whole_batch(h))
    for concrete in itertools.takewhile(lambda c: c.tokens <= MOST_TOKENS, found):
        if _has_weights(h, concrete):
            yield concrete, (0,) * concrete.tokens, exact
            few += [concrete] if concrete.tokens <= FEW_TOKENS and len(few) < caps.FIRST_UPDATE.few else []
    yield from ((concrete, way, CLOSE) for concrete in few for way in directions(concrete.tokens))


def _has_weights(h: Hierarchy, concrete: Concrete) -> bool:
    """Whether every token has a weight in the objective, and every element a mass: if not, another law fails."""
    n = concrete.tokens
    point = Point(h, concrete, (Fraction(0),) * n, (Fraction(1),) * n)
    tokens = [(s, e) for s in h.order for e in range(concrete.size[s]) if point.over(s, e)]
    masses = attempt(lambda: [concrete.value(h.masses[s], s, e) for s, e in tokens])
    return masses is not None and min(masses) > 0 and attempt(lambda: point.weights) is not None


def _advantages(h: Hierarchy, concrete: Concrete, signed: bool) -> Iterator[tuple[Fraction, ...]]:
    """Advantages of all tokens: an unrelated number per row, with all signs if `signed`."""
    rows = rows_of(h, concrete)
    for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)) if signed else ((1, 1),):
        if len(set(signs)) <= len(set(rows)):
            yield tuple(signs[row % 2] * Fraction(7 + 4 * row, 7 + 3 * row) for row in rows)


def _alone(h: Hierarchy, concrete: Concrete) -> Iterator[tuple[Fraction, ...]]:
    """An advantage of 1 or -1 on one row, and of 0 on the others: the easiest to check by hand."""
    rows = rows_of(h, concrete)
    for row, a in itertools.product(sorted(set(rows)), (1, -1)):
        yield tuple(Fraction(a * (r == row)) for r in rows)


def _true(point: Point) -> list[Fraction]:
    """`μ·A`."""
    return [m * a for m, a in zip(point.weights, point.advantages, strict=True)]


def _witness(point: Point) -> Witness:
    h, concrete = point.h, point.concrete
    where = f"at log ratios {in_brief(*point.log_ratios)}" if any(point.log_ratios) else "on policy"
    found = attempt(lambda: point.coefficients)
    got = NO_VALUE if found is None else in_brief(*found)
    what = "coefficient ∂J/∂log π is" if len(point.advantages) == 1 else "coefficients ∂J/∂log π are"
    text = (
        f"{in_batch(h, concrete)} with {point.advantages_of_rows}, {where}, the {what} {got} instead of μ·A = "
        f"{in_brief(*_true(point))}"
    )
    exact = rounding(*_read(h))
    values = {
        "advantages": point.advantages, "log_ratios": point.log_ratios,
        "coefficients": None if found is None else tuple(rounded(c, exact) for c in found),
        "true": tuple(rounded(c, exact) for c in _true(point)),
    }  # fmt: skip
    return Witness.on(concrete, text, values)
