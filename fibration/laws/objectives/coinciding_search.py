"""Searches batches on which all policies coincide, or nearly, for a weight that is not 1 or a condition that fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from fibration.errors import an
from fibration.language.atoms import advantage
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD
from fibration.language.statistics import atoms_within
from fibration.language.traversal import desugar
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, rows_of
from fibration.laws.batches.concrete import rounding
from fibration.laws.batches.first_update import CLOSE, NO_VALUE, STEPS, directions
from fibration.laws.batches.search import concretes, find, is_of_one_token
from fibration.laws.batches.words import Witness, in_batch
from fibration.laws.values.numerals import in_brief, rounded

# Log-probs of the tokens of one batch: all equal, all different, with ties, all 0.
BASES: tuple[Callable[[int], Fraction], ...] = (
    lambda k: Fraction(-1),
    lambda k: Fraction(-1 - k),
    lambda k: Fraction(-1 - k * k % 3, 2),
    lambda k: Fraction(0),
)


def off_one(h: Hierarchy, formula: Expression) -> Witness | None:
    """A token whose weight is not 1, or whose condition fails, where policies coincide, or beside that; or None.

    Beside that: at each of a few steps of one policy, the last of which is tiny.
    """
    exact, few = rounding(desugar(formula)), list[Point]()
    others = dict.fromkeys(p for p in (CURRENT, *h.policies) if p != OLD)

    def is_off(batch: Point, k: int, tolerance: Fraction) -> bool:
        value = batch.attempt(formula, k)  # True is 1
        return value is None or abs(value - 1) > tolerance

    def wrong(batch: Point) -> Witness | None:
        n = len(batch.places)
        tokens: Sequence[int] = range(n)
        if not caps.COINCIDING.allow(n):  # the first token of every row
            tokens = sorted({row: k for k, row in reversed([*enumerate(rows_of(h, batch.concrete))])}.values())
        elif any(batch.log_probs[OLD]):  # a log-prob of 0 can only move down
            few.append(batch)
        return next((_witness(formula, batch, k, exact) for k in tokens if is_off(batch, k, exact)), None)

    def far(tried: tuple[Point, str]) -> Witness | None:
        batch, policy = tried
        for way in directions(n := len(batch.places)):
            changes = [tuple(s * d for d in way) for s in STEPS]
            found = [_moved(batch, policy, change) for change in changes]
            for k in range(n):
                if all(is_off(f, k, CLOSE) for f in found):
                    return _witness(formula, found[0], k, exact, policy, changes[0])
        return None

    return find(_coinciding(h, formula), wrong) or find(itertools.product(few, others), far)


def _coinciding(h: Hierarchy, formula: Expression) -> Iterator[Point]:
    read = set(atoms_within(formula))
    most = caps.COINCIDING.of_any_size if is_of_one_token(formula) else caps.COINCIDING
    for concrete in concretes(h, [formula], most, whole_batch(h)):
        n, rows = concrete.tokens, rows_of(h, concrete)
        advantages = [(Fraction(a),) * n for a in ((1, -1, 0) if advantage in read else (1,))]
        if advantage in read and len(set(rows)) > 1:
            advantages.append(tuple(Fraction(1 + row, -2 if row % 2 else 1) for row in rows))
        bases = BASES if caps.COINCIDING.allow(n) else BASES[:1]
        for base in dict.fromkeys(tuple(b(k) for k in range(n)) for b in bases):
            yield from (Point.alike(h, concrete, given, base) for given in advantages)


def _moved(batch: Point, policy: str, change: tuple[Fraction, ...]) -> Point:
    """The batch with the log-probs of one policy off by `change`."""
    if policy == CURRENT:
        return replace(batch, log_ratios=change)
    own = tuple(b + c for b, c in zip(batch.log_probs[OLD], change, strict=True))
    return replace(batch, log_probs={**batch.log_probs, policy: own})


def _witness(
    formula: Expression, batch: Point, k: int, exact: Fraction, policy: str = OLD, change: tuple[Fraction, ...] = ()
) -> Witness:
    """A witness such as `in a trajectory of 1 token, where all policies coincide, the weight is 2 instead of 1`."""
    base, value, is_one = batch.log_probs[OLD], batch.attempt(formula, k), len(batch.places) == 1
    given = "" if set(batch.advantages) == {1} else _listed("advantage", batch.advantages)
    given += _listed("log-prob", base) if len(set(base)) > 1 else ""  # type: ignore[arg-type]
    where = "where all policies coincide"
    where += f" but {policy}, which is off by {', '.join(map(in_brief, change))}" if any(change) else ""
    values = {"element": k, **batch.numbers}
    if formula.is_condition:
        what = "the token" if is_one else "the condition"
        got = "is dropped" if is_one else "fails"
    else:
        values["weight"] = value = None if value is None else rounded(value, exact)
        what, got = "the weight", "" if value is None else f"is {in_brief(value)} instead of 1"
    what += "" if is_one else f" of token {k + 1}"
    got = f"has {NO_VALUE}" if value is None else got
    return Witness.on(batch.concrete, f"{in_batch(batch.h, batch.concrete)}{given}, {where}, {what} {got}", values)


def _listed(word: str, values: Sequence[Fraction]) -> str:
    if len(set(values)) == 1:
        return f" with {an(word)} of {in_brief(values[0])}"
    return f" with {word}s {', '.join(map(in_brief, values))}"
