"""Which declared loss a function is: its program beside those of the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fibration.auditing.batch import Batch, Floats, off_policy, on_policy, small
from fibration.auditing.formula import Untraced, mul, number
from fibration.auditing.function import Found, Function
from fibration.auditing.prove import equal
from fibration.auditing.record import Traced
from fibration.auditing.reference import Reference, lacks
from fibration.auditing.search import EXACT, NOTHING, POINTS, Sample, Search, bounds_of, constants, guesses, sample
from fibration.language.loading import load, shipped

SAME_VALUE = 1e-5
COMMON = ("ppo", "dapo", "grpo", "gspo", "reinforce", "cispo")  # named first among equals
UNUSUAL = 10  # times a declared number, or its tenth: a loss with such a parameter is not named as the nearest
NEAREST = 8  # losses that are searched on all shapes: those that come nearest on one


@dataclass(frozen=True)
class Likeness:
    """A declared loss beside the function.

    `factor`: by what its gradient is multiplied. `differing`: on how many of `batches` a coefficient differs then.
    `strength`: whether equality is proved for all numbers, on rows of the lengths of `shape`, or was seen on the
    batches; '' if they differ. `is_far`: whether more than half of the coefficients differ, by more than a
    factor of their batch. `same_value`: whether the loss has the same value on all batches. `unseen`: parameters that
    decide nothing here, such as a bound beyond all ratios: their values are not the function's. `batch`: the smallest
    found on which they differ; None if there is none.
    """

    reference: Reference
    parameters: Mapping[str, Any]
    batches: int
    differing: int
    same_value: bool
    factor: float = 1.0
    shape: tuple[int, ...] = ()
    is_far: bool = False
    unseen: tuple[str, ...] = ()
    batch: Batch | None = None

    @property
    def name(self) -> str:
        return self.reference.hierarchy.name

    @property
    def strength(self) -> Literal["proved", "seen", ""]:
        return "" if self.differing or not self.batches else "proved" if self.shape else "seen"

    @property
    def has_same_direction(self) -> bool:
        return bool(self.batches) and not self.differing

    @property
    def has_same_gradient(self) -> bool:
        return self.has_same_direction and self.factor == 1

    @property
    def is_same(self) -> bool:
        return self.has_same_gradient and self.same_value

    @property
    def is_usual(self) -> bool:
        """Whether no parameter that decides something is far from its declared number."""
        seen = {name: v for name, v in self.parameters.items() if name not in self.unseen}
        declared = self.reference.values({})
        pairs = [(v, declared[name]) for name, v in self.reference.values(seen).items()]
        return all(not d or 1 / UNUSUAL <= v / d <= UNUSUAL for v, d in pairs)

    def other(self, batch: Batch) -> Found | None:
        return self.reference.evaluate(batch, self.parameters)

    def formulas(self, batch: Batch) -> list[Any]:
        """The coefficients of tokens. Raises Untraced if the loss does not take the batch."""
        return self.reference.with_numbers(batch, self.parameters)


class Compared:
    """A function beside declared losses."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.programs = {b: function.of_tokens(p, b) for b, p in function.programs.items() if isinstance(p, Traced)}
        seen = {b: list(p.seen) for b, p in function.programs.items() if isinstance(p, Untraced)}
        read = ([(b, some) for b, made in of.items() if (some := constants(made))] for of in (self.programs, seen))
        exact, self.numbers = guesses(next(filter(None, read), []))
        self.samples = [self._sample(b, POINTS, bounds_of(exact)) for b in function.structures]

    def _sample(self, batch: Batch, n: int, bounds: Sequence[float]) -> Sample:
        return sample(self.function, batch, self.programs.get(batch), n, bounds)

    def search(self, reference: Reference, fixed: Mapping[str, Any]) -> Search:
        return Search(reference, fixed, self.samples, self.numbers, self._sample)

    @cached_property
    def battery(self) -> list[tuple[Batch, Found]]:
        """Batches, the small ones first, and what the function makes of them; each reward has another beside it."""

        def is_alone(b: Batch) -> bool:
            groups = [r.group for r in b.rows] if "group_ids" in self.function.roles else [0] * len(b.rows)
            return self.function.reads_rewards and any(groups.count(g) == 1 for g in groups)

        each = (*small(), *on_policy(), *off_policy())
        return [(b, self.function.evaluate(b)) for b in each if not is_alone(b)]

    def judged(self, search: Search) -> Likeness:
        reference, parameters, factor = search.reference, search.parameters, search.factor
        same, close, tokens, apart = True, 0, 0, list[Batch]()
        taken = [(b, f, o) for b, f in self.battery if (o := reference.evaluate(b, parameters)) is not None]
        sizes = [np.abs(f.coefficients).max() for _, f, _ in taken if f.coefficients.any()]
        nothing = NOTHING * float(np.median(sizes or [0]))
        for b, mine, theirs in taken:
            one, two = mine.coefficients, theirs.coefficients
            fine, live = _close(one, factor * two, nothing), (np.abs(one) > nothing) & (two != 0)
            with np.errstate(over="ignore"):
                own = np.median(one[live] / two[live]) if live.any() else 1.0  # a factor of each batch is one part
            close, tokens = close + int(_close(one, own * two, nothing).sum()), tokens + b.tokens
            if not fine.all():
                apart.append(b)
            elif abs(theirs.value - mine.value) > SAME_VALUE * (1 + abs(theirs.value)):
                same = False
        differing = max(len(apart), int(search.least[0] > 0 and bool(search.samples)))  # or at points alone
        counts = len(taken), differing, same and factor == 1
        at = next((b for b, f, _ in taken if b in apart or (factor != 1 and f.coefficients.any())), None)
        made = Likeness(reference, parameters, *counts, factor, (), 2 * close < tokens, search.unseen(), at)
        return made if differing else replace(made, shape=self._proved(made))

    def _proved(self, x: Likeness) -> tuple[int, ...]:
        """The rows of the smallest shape that both take, if the programs are equal there for all numbers."""
        for batch, mine in sorted(self.programs.items(), key=lambda p: len(p[1])) if not self.function.untraced else ():
            try:
                theirs = x.formulas(batch)
            except Untraced:
                continue
            k = number(x.factor)
            return batch.lengths if all(equal(a, mul(k, b)) for a, b in zip(mine, theirs, strict=True)) else ()
        return ()


def _close(one: Floats, other: Floats, nothing: float) -> Any:
    """Which coefficients are equal, beside the largest, or both `nothing`; NaN is equal to none."""
    with np.errstate(all="ignore"):
        size = max(np.abs(one).max(initial=0), np.abs(other).max(initial=0))
        return np.abs(one - other) <= EXACT * size + nothing


def identify(compared: Compared) -> list[Likeness]:
    """The shipped losses that a function is; or the nearest one alone, if it is none."""
    takes = (h for n in sorted(shipped()) if not lacks(h := load(n), compared.function))
    searches = [compared.search(Reference.of(h, compared.function), {}) for h in takes]
    for s in searches:
        s.turns(1)
    searches = sorted(searches, key=lambda s: s.least)[: None if compared.function.untraced else NEAREST]
    found = list[Likeness]()
    for s in searches:
        if any(x.has_same_direction for x in found) and s.least[0]:
            break  # a twin has no other coefficient on the first shape either
        found += [compared.judged(s)] if not s.run().least[0] or not s.samples else []
    same = [x for x in found if x.is_same] or [x for x in found if x.has_same_gradient]
    if same := same or [x for x in found if x.has_same_direction]:
        return sorted(same, key=lambda x: (len(x.unseen), len(x.parameters), x.name not in COMMON, x.name))
    nearest = [compared.judged(s) for s in sorted(searches, key=lambda s: (s.factor != 1, s.least))[:3]]
    return sorted(nearest, key=lambda x: (x.is_far, x.differing))[:1]
