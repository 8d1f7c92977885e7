"""Searches batches on which all policies coincide, or nearly, for a token at which a formula is not as it must be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration.errors import an
from fibration.language.atoms import advantage
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD
from fibration.language.statistics import atoms_within
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, rows_of
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.first_update import STEPS, directions
from fibration.laws.batches.search import concretes, find, is_of_one_token
from fibration.laws.batches.words import Witness, in_batch
from fibration.laws.values.numerals import in_brief

Is = Callable[[Any], bool]  # whether a value is what it must be

# Log-probs of the tokens of one batch: all equal, all different, with ties, all 0.
BASES: tuple[Callable[[int], Fraction], ...] = (
    lambda k: Fraction(-1),
    lambda k: Fraction(-1 - k),
    lambda k: Fraction(-1 - k * k % 3, 2),
    lambda k: Fraction(0),
)


@dataclass(frozen=True)
class NearBatch:
    """A batch on which all policies coincide, or all but `policy`, whose log-probs differ from `old` by `change`."""

    h: Hierarchy
    tokens: Point
    policy: str = OLD
    change: tuple[Fraction, ...] = ()

    @property
    def base(self) -> Sequence[Any]:
        """The log-probs under `old`."""
        return self.tokens.log_probs[OLD]

    @property
    def first_of_rows(self) -> list[int]:
        """The first token of every row."""
        found: dict[int, int] = {}
        for k, row in enumerate(rows_of(self.h, self.tokens.concrete)):
            found.setdefault(row, k)
        return list(found.values())

    def moved(self, policy: str, change: tuple[Fraction, ...]) -> NearBatch:
        """The batch with other log-probs of one policy."""
        if policy == CURRENT:
            return replace(self, tokens=replace(self.tokens, log_ratios=change), policy=policy, change=change)
        log_probs = {**self.tokens.log_probs, policy: tuple(b + c for b, c in zip(self.base, change, strict=True))}
        return replace(self, tokens=replace(self.tokens, log_probs=log_probs), policy=policy, change=change)


def find_violation(h: Hierarchy, formula: Expression, is_right: Is, close: Is) -> tuple[NearBatch, int] | None:
    """A batch and a token at which a formula is not right where policies coincide, or not close beside it; or None.

    Not close beside it: at none of a few steps, the last of which is tiny.
    """
    others = dict.fromkeys(p for p in (CURRENT, *h.policies) if p != OLD)
    few: list[NearBatch] = []

    def wrong(near: NearBatch) -> tuple[NearBatch, int] | None:
        is_small = caps.COINCIDING.allow(len(near.base))
        tokens = range(len(near.base)) if is_small else near.first_of_rows
        few.extend([near] if any(near.base) and is_small else [])  # a log-prob of 0 can only move down
        return next(((near, k) for k in tokens if not is_right(near.tokens.attempt(formula, k))), None)

    def far(tried: tuple[NearBatch, str]) -> tuple[NearBatch, int] | None:
        near, policy = tried
        for way in directions(len(near.base)):
            found = [near.moved(policy, tuple(s * d for d in way)) for s in STEPS]
            for k in range(len(near.base)):
                if not any(close(f.tokens.attempt(formula, k)) for f in found):
                    return found[0], k
        return None

    return find(_coinciding(h, formula), wrong) or find(itertools.product(few, others), far)


def _coinciding(h: Hierarchy, formula: Expression) -> Iterator[NearBatch]:
    read = set(atoms_within(formula))
    most = caps.COINCIDING.of_any_size if is_of_one_token(formula) else caps.COINCIDING
    for concrete in concretes(h, [formula], most, whole_batch(h)):
        n = concrete.tokens
        bases = BASES if caps.COINCIDING.allow(n) else BASES[:1]
        for base in dict.fromkeys(tuple(b(k) for k in range(n)) for b in bases):
            for advantages in _advantages(h, concrete, n) if advantage in read else [(Fraction(1),) * n]:
                yield NearBatch(h, Point.alike(h, concrete, advantages, base))


def _advantages(h: Hierarchy, concrete: Concrete, n: int) -> Iterator[tuple[Fraction, ...]]:
    """Yields advantages, one per row: of either sign, 0, and different ones."""
    rows = rows_of(h, concrete)
    yield from ((Fraction(a),) * n for a in (1, -1, 0))
    if len(set(rows)) > 1:
        yield tuple(Fraction(1 + row, -2 if row % 2 else 1) for row in rows)


def witness(near: NearBatch, k: int, what: str, found: str, **values: Any) -> Witness:
    """A witness such as `in a trajectory of 1 token, where all policies coincide, the weight is 2 instead of 1`."""
    h, tokens, concrete = near.h, near.tokens, near.tokens.concrete
    given = "" if set(tokens.advantages) == {1} else _listed("advantage", tokens.advantages)
    if len(set(near.base)) > 1:
        given += _listed("log-prob", near.base)
    where = "where all policies coincide"
    if any(near.change):
        where += f" but {near.policy}, which is off by {', '.join(map(in_brief, near.change))}"
    which = "" if len(near.base) == 1 else f" of token {k + 1}"
    text = f"{in_batch(h, concrete)}{given}, {where}, {what}{which} {found}"
    return Witness.on(concrete, text, {"element": k, **tokens.numbers, **values})


def _listed(word: str, values: Sequence[Fraction]) -> str:
    if len(set(values)) == 1:
        return f" with {an(word)} of {in_brief(values[0])}"
    return f" with {word}s {', '.join(map(in_brief, values))}"
