"""The first update on small batches, in exact rationals: coefficients at `r = 1`, or beside it, that are not `μ·A`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from fibration.errors import an
from fibration.language.atoms import Stratum, advantage, token_log_ratio
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.operators import exp
from fibration.language.order import Ordered
from fibration.language.places import whole_batch
from fibration.language.traversal import atoms, evaluate
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, attempt, formulas, rows_of
from fibration.laws.batches.concrete import Concrete, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.batches.words import Witness, in_batch
from fibration.laws.values.duals import slopes_of, value_of
from fibration.laws.values.numerals import in_brief, plural, rounded, shown

STEPS = (Fraction(1, 10**12), Fraction(1, 10**20), Fraction(1, 10**24))  # of log ratios near 0
MOST_TOKENS = 16  # a larger batch ends the search
FEW_TOKENS = 3  # of a batch that is tried beside r = 1, in many directions
CLOSE = Fraction(1, 10**6)  # tolerance beside r = 1, where a smooth operator differs a little
NO_VALUE = "no value"


# ---------------------------------------------------------------- one token


def start_not_recovered(h: Hierarchy, leaf: Stratum, whole: Expression) -> Witness | None:
    """A token whose ratio near 1 is not recovered to first order. `whole` is `R∘F` on its leaf."""
    if atoms(whole, Ordered):
        return None  # the coefficients of a batch say more than its own slope
    batches = (c for c in concretes(h, [whole], caps.FIRST_UPDATE) if c.size[leaf])
    return find(batches, lambda concrete: _wrong_start(h, concrete, leaf, whole))


def _wrong_start(h: Hierarchy, concrete: Concrete, leaf: Stratum, whole: Expression) -> Witness | None:
    exact, signs = rounding(whole), _signs([whole])
    for side, a in itertools.product((0, 1, -1), signs):
        close = exact if side == 0 else CLOSE
        found = [_start(h, concrete, leaf, whole, side * step, a) for step in (STEPS if side else STEPS[:1])]
        if all(f is None or any(abs(v - 1) > close for v in f) for f in found):
            value, slope = (None, None) if found[0] is None else (rounded(v, exact) for v in found[0])
            got = [NO_VALUE if v is None else in_brief(v) for v in (value, slope)]
            place = "" if leaf in h.roots else f"in {concrete.describe(h.shape.below(leaf)[0].target)}, "
            given = f"log ratio {in_brief(side * STEPS[0])}" + (f" and advantage {a}" if len(signs) > 1 else "")
            text = f"{place}{an(leaf)} with {given} comes back as {got[0]} with the slope {got[1]}"
            values: dict[str, Any] = {"leaf": leaf.name, "log_ratio": side * STEPS[0]}
            values |= {"recovered": value, "slope": slope}
            values |= {"advantage": a} if len(signs) > 1 else {}
            return Witness.on(concrete, text, values)
    return None


def _signs(formulas: Sequence[Expression]) -> tuple[Fraction, ...]:
    """The advantages that are tried: 1, and -1 if a formula reads the advantage."""
    return (Fraction(1), Fraction(-1)) if any(advantage in atoms(e) for e in formulas) else (Fraction(1),)


def _start(
    h: Hierarchy, concrete: Concrete, leaf: Stratum, whole: Expression, x: Fraction, own: Fraction
) -> tuple[Fraction, Fraction] | None:
    here = Point(h, concrete, (x,) * concrete.tokens, (own,) * concrete.tokens)
    back = attempt(lambda: here.value_at(whole, leaf, 0, moves=True))
    return None if back is None else (value_of(back), sum(slopes_of(back).values(), Fraction(0)))


# ---------------------------------------------------------------- a batch


def wrong_coefficients(h: Hierarchy) -> Witness | None:
    """Advantages that are constant on rows, and coefficients `∂J/∂log π` that are not `μ·A`.

    The coefficients are taken at `r = 1`; on a few batches of few tokens also beside it, however close. Weights and
    conditions of tokens are left out: other laws cover them. None if residuals are those of a projection.
    """
    if h.orthogonalise is not None:
        return None
    h = gates_alone(h)
    read = [*formulas(h), h.objective.spelled_out(h.leaves, h.rows)]
    is_signed = len(_signs(read)) > 1
    return find(_tried(h, read), lambda tried: _wrong_coefficients(h, *tried, is_signed))


def _wrong_coefficients(
    h: Hierarchy, concrete: Concrete, way: Sequence[int], close: Fraction, is_signed: bool
) -> Witness | None:
    ends = [tuple(step * d for d in way) for step in (STEPS if any(way) else STEPS[:1])]
    for advantages in _advantages(h, concrete, is_signed):
        if _are_off(h, concrete, ends, advantages, close):
            alone = (a for a in _alone(h, concrete) if _are_off(h, concrete, ends, a, close))
            return _witness(Point(h, concrete, ends[0], next(alone, advantages)))
    return None


def opposed_advantage(h: Hierarchy) -> Witness | None:
    """An advantage of one row alone whose coefficients there add up to the other sign, as `wrong_coefficients`."""
    if h.orthogonalise is not None:
        return None
    h = gates_alone(h)
    read = [*formulas(h), h.objective.spelled_out(h.leaves, h.rows)]
    signs = _signs(read)

    def fails(tried: tuple[Concrete, tuple[int, ...], Fraction]) -> Witness | None:
        concrete, way, close = tried
        for advantages in _alone(h, concrete):
            own = [k for k, a in enumerate(advantages) if a]
            if advantages[own[0]] in signs:
                points = [Point(h, concrete, tuple(step * d for d in way), advantages) for step in STEPS]
                if all(_is_opposed(point, own, close) for point in (points if any(way) else points[:1])):
                    return _witness(points[0])
        return None

    return find(_tried(h, read), fails)


def _is_opposed(point: Point, own: Sequence[int], close: Fraction) -> bool:
    found = attempt(lambda: point.coefficients)
    return found is not None and sum(found[k] * point.advantages[k] for k in own) < -close


def gates_alone(h: Hierarchy) -> Hierarchy:
    """The hierarchy without weights and conditions of tokens."""
    plain = Objective(h.objective.weight, estimator=h.objective.estimator)
    return h.replace(objective=plain) if h.objective.formulas else h


def _tried(h: Hierarchy, read: list[Expression]) -> Iterator[tuple[Concrete, tuple[int, ...], Fraction]]:
    """Batches, directions from `r = 1`, and the tolerance of a coefficient."""
    few: list[Concrete] = []
    exact = rounding(*read)
    found = concretes(h, read, caps.FIRST_UPDATE, whole_batch(h))
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


def _are_off(
    h: Hierarchy,
    concrete: Concrete,
    ends: Sequence[tuple[Fraction, ...]],
    advantages: tuple[Fraction, ...],
    close: Fraction,
) -> bool:
    """Whether some coefficient is not `μ·A`, or has no value, at each of these log ratios."""
    for log_ratios in ends:
        point = Point(h, concrete, log_ratios, advantages)
        found = attempt(lambda point=point: point.coefficients)  # type: ignore[misc]
        if found and all(abs(c - t) <= close for c, t in zip(found, _true(point), strict=True)):
            return False
    return True


def _true(point: Point) -> list[Fraction]:
    """`μ·A`."""
    return [m * a for m, a in zip(point.weights, point.advantages, strict=True)]


def _witness(point: Point) -> Witness:
    h, concrete = point.h, point.concrete
    rows = concrete.size[h.rows]
    of_row = sorted(dict(zip(rows_of(h, concrete), point.advantages, strict=True)).items())
    given = ", ".join(in_brief(a) for _, a in of_row)
    given = f"advantage {given}" if rows == 1 else f"{plural(h.rows.name)} of advantages {given}"
    where = f"at log ratios {in_brief(*point.log_ratios)}" if any(point.log_ratios) else "on policy"
    found = attempt(lambda: point.coefficients)
    got = NO_VALUE if found is None else in_brief(*found)
    what = "coefficient ∂J/∂log π is" if len(point.advantages) == 1 else "coefficients ∂J/∂log π are"
    text = f"{in_batch(h, concrete)} with {given}, {where}, the {what} {got} instead of μ·A = {in_brief(*_true(point))}"
    exact = rounding(*formulas(h), h.objective.spelled_out(h.leaves, h.rows))
    values = {
        "advantages": point.advantages, "log_ratios": point.log_ratios,
        "coefficients": None if found is None else tuple(rounded(c, exact) for c in found),
        "true": tuple(rounded(c, exact) for c in _true(point)),
    }  # fmt: skip
    return Witness.on(concrete, text, values)


# ---------------------------------------------------------------- beside ratio 1


def candidates(h: Hierarchy) -> Iterator[tuple[Concrete, Fraction]]:
    """Small concrete hierarchies with an advantage, smallest first; none if residuals are those of a projection."""
    if h.orthogonalise is not None:
        return
    read = formulas(h)
    for concrete in concretes(h, read, caps.FIRST_ORDER):
        yield from ((concrete, a) for a in _signs(read))


def off_policy(h: Hierarchy) -> Witness | None:
    """Log ratios near 0 whose gated and true ratios differ in proportion to them, however small the log ratios are."""

    def fails(tried: tuple[Concrete, Fraction]) -> Witness | None:
        concrete, a = tried
        for direction in directions(n := concrete.tokens):
            points = (Point(h, concrete, tuple(step * d for d in direction), (a,) * n) for step in STEPS)
            if all(_differs(point, step) for point, step in zip(points, STEPS, strict=True)):
                return _of_ratios(Point(h, concrete, tuple(STEPS[0] * d for d in direction), (a,) * n))
        return None

    return find(candidates(h), fails)


def directions(n: int) -> Iterator[tuple[int, ...]]:
    """One token alone, all of them, one against the others."""
    for sign in (1, -1):
        yield (sign,) * n
        for k in range(n if n > 1 else 0):
            yield tuple(sign * (i == k) for i in range(n))
            yield tuple(sign if i == k else -sign for i in range(n))


def _differs(point: Point, step: Fraction) -> bool:
    found = attempt(lambda: point.gated)
    truth = (evaluate(exp(token_log_ratio), {token_log_ratio: x}) for x in point.log_ratios)
    return found is None or any(abs(g - r) > step / 10**6 for g, r in zip(found, truth, strict=True))


def _of_ratios(point: Point) -> Witness:
    h, concrete, xs, a = point.h, point.concrete, point.log_ratios, point.advantages[0]
    found = attempt(lambda: point.gated)
    given = f", advantage {a}" if any(advantage in atoms(h.gate(s)) for s in h.order) else ""
    got = "no value" if found is None else ", ".join(shown(g - 1) for g in found)
    text = (
        f"on {concrete.describe(h.roots[0])}{given}{concrete.chosen}: log ratios {', '.join(map(shown, xs))} have "
        f"𝒢(r) - 1 = {got}"
    )
    exact = None if found is None else tuple(rounded(g, rounding(*formulas(h))) for g in found)
    values = {"advantage": a, "log_ratios": tuple(xs), "gated": exact}
    return Witness(text, concrete, values)
