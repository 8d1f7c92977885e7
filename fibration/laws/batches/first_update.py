"""The first update on small batches, in exact rationals: coefficients at `r = 1`, or beside it, that are not `μ·A`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from fibration.errors import an
from fibration.language.atoms import BATCH, Stratum, advantage, token_log_ratio
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.order import Ordered
from fibration.language.places import whole_batch
from fibration.language.traversal import atoms
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete, Witness, in_brief, plural, rounded, rounding, settings
from fibration.laws.batches.direct_operator import STEPS, directions, formulas
from fibration.laws.batches.search import concretes
from fibration.laws.values.duals import Dual, differentiate, slopes_of, value_of

MOST_TRIED, MOST_TOKENS = 81, 16
FEW, FEW_TOKENS = 12, 3  # batches that are tried beside r = 1, in many directions, and the tokens of one batch
CLOSE = Fraction(1, 10**6)  # tolerance beside r = 1, where a smooth operator differs a little
NO_VALUE = "no value"
T = TypeVar("T")


def attempt(evaluate: Callable[[], T]) -> T | None:
    """The result of `evaluate`; None if it has no value or no slope."""
    try:
        return evaluate()
    except NoValue:
        return None


# ---------------------------------------------------------------- one token


def start_not_recovered(h: Hierarchy, leaf: Stratum, whole: Expression) -> Witness | None:
    """A token whose ratio near 1 is not recovered to first order. `whole` is `R∘F` on its leaf."""
    exact = rounding(whole)
    if atoms(whole, Ordered):
        return None  # the coefficients of a batch say more than its own slope
    for concrete in concretes(h, [whole], most=MOST_TRIED):
        if not concrete.size[leaf]:
            continue
        signs = (Fraction(1), Fraction(-1)) if advantage in atoms(whole) else (Fraction(1),)
        for side, a in itertools.product((0, 1, -1), signs):
            close = exact if side == 0 else CLOSE
            found = [_start(concrete, leaf, whole, side * step, a) for step in (STEPS if side else STEPS[:1])]
            if all(f is None or any(abs(v - 1) > close for v in f) for f in found):
                value, slope = (None, None) if found[0] is None else (rounded(v, exact) for v in found[0])
                got = [NO_VALUE if v is None else in_brief(v) for v in (value, slope)]
                place = "" if leaf in h.roots else f"in {concrete.describe(h.shape.below(leaf)[0].target)}, "
                x = in_brief(side * STEPS[0])
                given = f"log ratio {x}" + (f" and advantage {a}" if len(signs) > 1 else "")
                text = f"{place}{an(leaf)} with {given} comes back as {got[0]} with the slope {got[1]}"
                values: dict[str, Any] = {"leaf": leaf.name, "log_ratio": side * STEPS[0]}
                values |= {"recovered": value, "slope": slope}
                values |= {"advantage": a} if len(signs) > 1 else {}
                return Witness(text + settings(concrete), concrete, values)
    return None


def _start(
    concrete: Concrete, leaf: Stratum, whole: Expression, x: Fraction, own: Fraction
) -> tuple[Fraction, Fraction] | None:
    def atom(a: Expression) -> Fraction | Dual:
        if a == advantage:
            return own
        return Dual(x, {0: Fraction(1)}) if a == token_log_ratio else concrete.atom(a, leaf, 0)

    back = attempt(lambda: differentiate(whole, atom))
    return None if back is None else (value_of(back), slopes_of(back).get(0, Fraction(0)))


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
    signed = any(advantage in atoms(e) for e in read)
    for concrete, way, close in _tried(h, read):
        ends = [tuple(step * d for d in way) for step in (STEPS if any(way) else STEPS[:1])]
        for advantages in _advantages(h, concrete, signed):
            if _are_off(h, concrete, ends, advantages, close):
                alone = (a for a in _alone(h, concrete) if _are_off(h, concrete, ends, a, close))
                return _witness(Point(h, concrete, ends[0], next(alone, advantages)))
    return None


def gates_alone(h: Hierarchy) -> Hierarchy:
    """The hierarchy without weights and conditions of tokens."""
    plain = Objective(h.objective.weight, estimator=h.objective.estimator)
    return h.replace(objective=plain) if h.objective.formulas else h


def _tried(h: Hierarchy, read: list[Expression]) -> Iterator[tuple[Concrete, tuple[int, ...], Fraction]]:
    """Batches, directions from `r = 1`, and the tolerance of a coefficient."""
    few: list[Concrete] = []
    exact = rounding(*read)
    for concrete in concretes(h, read, whole_batch(h), most=MOST_TRIED):
        n = _tokens(h, concrete)
        if n > MOST_TOKENS:
            break
        if _has_weights(h, concrete):
            yield concrete, (0,) * n, exact
            few += [concrete] if n <= FEW_TOKENS and len(few) < FEW else []
    yield from ((concrete, way, CLOSE) for concrete in few for way in directions(_tokens(h, concrete)))


def _tokens(h: Hierarchy, concrete: Concrete) -> int:
    return sum(concrete.size[leaf] for leaf in h.leaves)


def _has_weights(h: Hierarchy, concrete: Concrete) -> bool:
    """Whether every token has a weight in the objective, and every element a mass: if not, another law fails."""
    n = _tokens(h, concrete)
    point = Point(h, concrete, (Fraction(0),) * n, (Fraction(1),) * n)
    masses = attempt(lambda: [m for found in point.dense.mass.values() for m in found if m is not None])
    return masses is not None and min(masses) > 0 and attempt(lambda: point.weights) is not None


def _advantages(h: Hierarchy, concrete: Concrete, signed: bool) -> Iterator[tuple[Fraction, ...]]:
    """Advantages of all tokens: an unrelated number per row, with all signs if `signed`."""
    rows = _rows(h, concrete)
    for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)) if signed else ((1, 1),):
        if len(set(signs)) <= len(set(rows)):
            yield tuple(signs[row % 2] * Fraction(7 + 4 * row, 7 + 3 * row) for row in rows)


def _rows(h: Hierarchy, concrete: Concrete) -> list[int]:
    """The row of every token."""
    return [concrete.below(leaf, i, h.rows) for leaf in h.leaves for i in range(concrete.size[leaf])]


def _alone(h: Hierarchy, concrete: Concrete) -> Iterator[tuple[Fraction, ...]]:
    """An advantage of 1 or -1 on one row, and of 0 on the others: the easiest to check by hand."""
    rows = _rows(h, concrete)
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
    place = concrete.describe(h.rows) if rows == 1 else concrete.describe(Stratum(BATCH))
    of_row = sorted(dict(zip(_rows(h, concrete), point.advantages, strict=True)).items())
    given = ", ".join(in_brief(a) for _, a in of_row)
    given = f"advantage {given}" if rows == 1 else f"{plural(h.rows.name)} of advantages {given}"
    where = f"at log ratios {_listed(point.log_ratios)}" if any(point.log_ratios) else "on policy"
    found = attempt(lambda: point.coefficients)
    got = NO_VALUE if found is None else _listed(found)
    what = "coefficient ∂J/∂log π is" if len(point.advantages) == 1 else "coefficients ∂J/∂log π are"
    text = f"in {place} with {given}, {where}, the {what} {got} instead of μ·A = {_listed(_true(point))}"
    exact = rounding(*formulas(h), h.objective.spelled_out(h.leaves, h.rows))
    values = {
        "advantages": point.advantages, "log_ratios": point.log_ratios,
        "coefficients": None if found is None else tuple(rounded(c, exact) for c in found),
        "true": tuple(rounded(c, exact) for c in _true(point)),
    }  # fmt: skip
    return Witness(text + settings(concrete), concrete, values)


def _listed(values: Sequence[Fraction]) -> str:
    return ", ".join(map(in_brief, values))
