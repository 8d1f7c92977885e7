"""Searches batches on which all policies coincide, or nearly, for a token at which a formula is not as it must be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration.errors import an
from fibration.language.atoms import BATCH, Stratum, advantage
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD
from fibration.language.statistics import atoms_within
from fibration.laws.batches.concrete import Concrete, Witness, in_brief, settings
from fibration.laws.batches.direct_operator import STEPS, DirectOperator, directions
from fibration.laws.batches.first_update import attempt
from fibration.laws.batches.search import concretes, is_of_one_token
from fibration.laws.values.duals import value_of

MOST_TRIED, MOST_TOKENS = 201, 6
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
    concrete: Concrete
    base: tuple[Fraction, ...]
    advantages: tuple[Fraction, ...]
    policy: str = OLD
    change: tuple[Fraction, ...] = ()

    def value(self, formula: Expression, k: int) -> Any:
        """A formula at a token; None where it has no value."""
        here = self._tokens
        found = attempt(lambda: here.value(formula, k))
        return found if found is None or isinstance(found, bool) else value_of(found)

    @property
    def first_of_rows(self) -> list[int]:
        """The first token of every row."""
        found: dict[int, int] = {}
        for k, place in enumerate(DirectOperator(self.h, self.concrete).tokens):
            found.setdefault(self.concrete.below(*place, self.h.rows), k)
        return list(found.values())

    @property
    def _tokens(self) -> Any:
        still = (Fraction(0),) * len(self.base)
        change = self.change or still
        moved = tuple(b + c for b, c in zip(self.base, change, strict=True))
        further = {p: moved if p == self.policy else self.base for p in self.h.policies if p not in (CURRENT, OLD)}
        log_ratios = change if self.policy == CURRENT else still
        return DirectOperator(self.h, self.concrete).at_tokens(log_ratios, self.advantages, {OLD: self.base, **further})

    @property
    def values(self) -> dict[str, Any]:
        """The log ratios, advantages and log-probs that a call would take."""
        here = self._tokens
        given: dict[str, Any] = {"log_ratios": tuple(here.log_ratios), "advantages": self.advantages}
        return given | {f"log_probs of {p}": tuple(v) for p, v in here.log_probs.items()}


def find_violation(h: Hierarchy, formula: Expression, is_right: Is, close: Is) -> tuple[NearBatch, int] | None:
    """A batch and a token at which a formula is not right where policies coincide, or not close beside it; or None.

    Not close beside it: at none of a few steps, the last of which is tiny.
    """
    moved = [p for p in (CURRENT, *h.policies) if p != OLD]
    few: list[NearBatch] = []
    for near in _coinciding(h, formula):
        is_small = len(near.base) <= MOST_TOKENS
        tokens = range(len(near.base)) if is_small else near.first_of_rows
        if (k := next((k for k in tokens if not is_right(near.value(formula, k))), None)) is not None:
            return near, k
        few += [near] if any(near.base) and is_small else []  # a log-prob of 0 can only move down
    for near, policy in itertools.product(few, dict.fromkeys(moved)):
        for way in directions(len(near.base)):
            found = [_moved(near, policy, [s * d for d in way]) for s in STEPS]
            for k in range(len(near.base)):
                if not any(close(f.value(formula, k)) for f in found):
                    return found[0], k
    return None


def _moved(near: NearBatch, policy: str, change: Sequence[Fraction]) -> NearBatch:
    return NearBatch(near.h, near.concrete, near.base, near.advantages, policy, tuple(change))


def _coinciding(h: Hierarchy, formula: Expression) -> Iterator[NearBatch]:
    read = set(atoms_within(formula))
    for concrete in concretes(h, [formula], whole_batch(h), most=MOST_TRIED):
        n = sum(concrete.size[leaf] for leaf in h.leaves)
        if n > MOST_TOKENS and not is_of_one_token(formula):
            continue
        for base in dict.fromkeys(tuple(b(k) for k in range(n)) for b in (BASES if n <= MOST_TOKENS else BASES[:1])):
            for advantages in _advantages(h, concrete, n) if advantage in read else [(Fraction(1),) * n]:
                yield NearBatch(h, concrete, base, advantages)


def _advantages(h: Hierarchy, concrete: Concrete, n: int) -> Iterator[tuple[Fraction, ...]]:
    """Yields advantages, one per row: of either sign, 0, and different ones."""
    rows = [concrete.below(leaf, i, h.rows) for leaf in h.leaves for i in range(concrete.size[leaf])]
    yield from ((Fraction(a),) * n for a in (1, -1, 0))
    if len(set(rows)) > 1:
        yield tuple(Fraction(1 + row, -2 if row % 2 else 1) for row in rows)


def witness(near: NearBatch, k: int, what: str, found: str, **values: Any) -> Witness:
    """A witness such as `in a trajectory of 1 token, where all policies coincide, the weight is 2 instead of 1`."""
    h, concrete = near.h, near.concrete
    rows = concrete.size[h.rows]
    place = concrete.describe(h.rows) if rows == 1 else concrete.describe(Stratum(BATCH))
    given = "" if len(set(near.advantages)) == 1 and near.advantages[0] == 1 else _listed("advantage", near.advantages)
    if len(set(near.base)) > 1:
        given += _listed("log-prob", near.base)
    where = "where all policies coincide"
    if any(near.change):
        where += f" but {near.policy}, which is off by {', '.join(map(in_brief, near.change))}"
    which = "" if len(near.base) == 1 else f" of token {k + 1}"
    text = f"in {place}{given}, {where}, {what}{which} {found}"
    return Witness(text + settings(concrete), concrete, {"element": k, **near.values, **values})


def _listed(word: str, values: Sequence[Fraction]) -> str:
    if len(set(values)) == 1:
        return f" with {an(word)} of {in_brief(values[0])}"
    return f" with {word}s {', '.join(map(in_brief, values))}"
