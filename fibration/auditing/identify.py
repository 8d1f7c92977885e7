"""Which declared loss a function is, with which parameters: its program beside those of the losses.

Parameters are numbers that the function holds itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fibration.auditing.batch import POLICIES, Batch, Floats, Row, off_policy, on_policy, small
from fibration.auditing.formula import Atom, Formula, Untraced, atom, evaluate, mul, number, parts, short
from fibration.auditing.function import Found, Function
from fibration.auditing.prove import chooses, equal, factors
from fibration.auditing.record import Traced
from fibration.auditing.reference import Reference, lacks
from fibration.language.loading import load, shipped

EXACT = 2e-6  # relative to the largest coefficient of a batch: functions write ÷ (n + 1e-6) for ÷ n
NOTHING = 1e-8  # relative to the coefficients of all batches: rounding, divided by a standard deviation + 1e-6
POINTS = 120  # of each shape: numbers at which coefficients are compared
MOST = 1600  # values of two parameters that are tried together
WIDE = 1e4  # by how much a parameter may be larger or smaller than its declared number
BESIDE = (0.9, 0.98, 0.999, 1.001, 1.02, 1.1)  # a bound, in its logarithm
HOPELESS = 0.7  # the share of coefficients that differ, above which no pairs of numbers are tried
FOUND = (0, False)  # no coefficient differs, and none has a factor
TIED = 8  # numbers of a parameter that are told apart beside their own bounds
SLACK = 3e-8  # by how much a constant may differ from a number of few digits that it is taken for, relative
NUMBERS = 200  # that are tried for a parameter
TOGETHER = 10_000  # numbers that a formula has at once: each part of it is as large
USUAL = (0.001, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.25, 0.28, 0.3, 0.5, 2.0, 3.0, 5.0, 10.0)
Slot = tuple[str, str]  # a parameter and its channel, or ''
Draw = Callable[[Batch, int, Sequence[float]], "Sample"]  # of a function: points of a batch beside bounds
SAME_VALUE = 1e-5
COMMON = ("ppo", "dapo", "grpo", "gspo", "reinforce", "cispo")  # named first among equals
FAR = 2, 10  # of how many tokens one differs at a loss that is not near: at a common one, and at another
UNUSUAL = 10  # times a declared number, or its tenth: a loss with such a parameter is not named as the nearest
NEAREST = 8  # losses that are searched on all shapes: those that come nearest on one


@dataclass(frozen=True)
class Sample:
    """A shape, numbers of its variables `[points]`, and the coefficients there `[tokens, points]`."""

    batch: Batch
    at: Mapping[Atom, Floats]
    coefficients: Floats


def bounds_of(numbers: Iterable[float]) -> list[float]:
    """Log ratios at which a loss with these numbers may have a bound."""
    return sorted({math.log(v) for n in numbers for v in (n, 1 + n, 1 - n) if 0.05 < v < 20 and v != 1}) or [0.1]


def values_of(formulas: Sequence[Any], at: Mapping[Atom, Any], shape: tuple[int, ...]) -> Floats:
    return np.array([np.broadcast_to(np.asarray(v, float), shape) for v in evaluate(formulas, at)])


def points(batch: Batch, per_token: bool, n: int, bounds: Sequence[float]) -> dict[Atom, Floats]:
    """Numbers at random: narrow and wide ratios, and ratios of tokens and of rows on both sides of the bounds."""
    draw, at = np.random.default_rng(11), dict[Atom, Floats]()
    spread = draw.choice([0.02, 0.1, 0.3, 1.0], n)

    def near() -> Floats:
        return np.asarray(draw.choice(bounds, n) * draw.choice(BESIDE, n))

    for r, length in enumerate(batch.lengths):
        how, row = draw.random(n), {p: near() for p in POLICIES}
        for t in range(length):
            moves = {"old_log_probs": np.zeros(n)}
            for p in (p for p in POLICIES if p != "old_log_probs"):
                some = [row[p], row[p] / length, near()], spread * draw.normal(size=n)
                move = np.select([how < 0.2, how < 0.4, how < 0.65], *some)
                moves[p] = move * (1 + 1e-4 * draw.normal(size=n))  # not equal in all tokens of a row
            old = -draw.uniform(0.05, 2.5, n) - np.max(list(moves.values()), axis=0)
            at |= {atom("var", p, r, t): old + x for p, x in moves.items()}
        for role in ("advantages", "rewards"):
            value = draw.normal(size=n)
            at |= {atom("var", role, r, *t): value for t in ([(t,) for t in range(length)] if per_token else [()])}
    return at


def filled(batch: Batch, at: Mapping[Atom, Floats], i: int) -> Batch:
    """The batch with the numbers of a point."""

    def row(r: int, given: Row) -> Row:
        def of(role: str) -> tuple[float, ...]:
            return tuple(float(x[i]) for v, x in at.items() if v.args[:2] == (role, r))

        one, two, three, four = map(of, POLICIES)
        return Row(one, two, three, four, of("advantages")[0], of("rewards")[0], given.group)

    return replace(batch, rows=tuple(row(r, given) for r, given in enumerate(batch.rows)))


def constants(formulas: Sequence[Any]) -> set[float]:
    """Numbers of formulas: factors, bounds, and factors beside others."""
    found: set[Any] = set()
    for x in parts(*formulas):
        if isinstance(x, Formula):
            each = [abs(c) for c in x.terms.values()]
            found |= set(each) | {Fraction(a) / b for a in each for b in each if len(each) <= 12}
        elif x.op in ("lt", "le") and not chooses(x.args[0]):
            found |= {v for _, t in factors(x.args[0])[1] for v in (abs(t), math.exp(min(t, 700)))}
        elif x.op != "var":
            found |= {abs(a) for a in x.args if isinstance(a, (int, Fraction))}
    return {_short(c) for c in found} - {0.0, 1.0}


def _short(x: Any) -> float:
    """The number of few digits that a function may mean: it writes ÷ (n + 1e-8) for ÷ n."""
    x = float(x)
    return next((v for d in range(1, 7) if abs((v := float(f"{x:.{d}g}")) - x) <= SLACK * abs(x)), float(f"{x:.11g}"))


def _shortest(some: Iterable[float], most: int) -> list[float]:
    return sorted(some, key=lambda c: (len(f"{c:.11g}"), c))[:most]


def guesses(each: Sequence[tuple[Batch, set[float]]]) -> tuple[list[float], list[float]]:
    """Constants that all shapes have; and what a parameter may be, if these are what a function makes of it: the
    constant itself, its distance from 1, a quotient, one that is divided by counts; powers and logarithms.
    """
    shared = set.intersection(*(some for _, some in each)) if each else set()
    rare = []
    for batch, some in each:
        groups = [r.group for r in batch.rows]
        sizes = {batch.tokens, *batch.lengths, *map(groups.count, groups)}
        products = {p for n in sizes for p in (n, n - 1, n * n, (n - 1) ** 2, n * (n - 1)) if p}
        counts = {1, 2, len(groups), len(set(groups))} | products
        rare.append({_short(c * n / m) for c in some for n in counts for m in counts})
    exact, counted = _shortest(shared, 30), _shortest(set.intersection(*rare) - shared if rare else (), 60)
    first = {_short(v) for k in exact for v in (k, abs(1 - k), *(k / other for other in exact))}
    first |= {_short(1 - k) for k in counted if k < 1}
    powers = [
        (1 / k, abs(1 / k - 1), 2 * k, k / 2, 4 * k, k / 4, k / math.sqrt(2), k * k, math.sqrt(k), abs(math.log(k)))
        for k in exact
    ]
    every = [*_shortest(first, 60), *USUAL, *counted, *itertools.chain(*powers), *(math.exp(k) for k in exact if k < 5)]
    return exact, list(dict.fromkeys(float(f"{v:.9g}") for v in every if v > 0))[:NUMBERS]


class Search:
    """The parameters of a declared loss that bring it nearest to the function, up to a factor.

    `least`: the share of coefficients that differ, and whether the rest has a factor. `samples`: where they are asked.
    """

    def __init__(
        self,
        reference: Reference,
        fixed: Mapping[str, Any],
        all_: Sequence[Sample],
        numbers: Sequence[float],
        draw: Draw,
    ) -> None:
        self.reference, self.fixed, self.all, self.draw = reference, fixed, all_, draw
        self.spaces, each = dict[Slot, list[float]](), np.array(numbers)
        for p in reference.hierarchy.parameters.values():
            for channel in () if p.name in fixed else ("+", "-") if p.per_channel else ("",):
                default = p.default[channel] if isinstance(p.default, Mapping) else p.default
                inside = each[~p.is_outside(each)].tolist()
                near = [v for v in inside if default is None or default / WIDE <= v <= default * WIDE]
                self.spaces[p.name, channel] = list(dict.fromkeys([*([default] * (default is not None)), *near])) or [1]
        self.ask(all_[:1])

    def ask(self, samples: Sequence[Sample], values: Mapping[Slot, float] | None = None) -> None:
        """Asks at other points, from these values on; None: from the declared ones."""
        self.samples = [s for s in samples if self.reference.formulas(s.batch) is not None]
        each = [s.coefficients for s in self.samples]
        self.mine = np.concatenate([np.zeros(0), *(c.ravel() for c in each)])
        sizes = [np.broadcast_to(np.abs(c).max(0), c.shape).ravel() for c in each]
        largest = np.abs(self.mine[np.isfinite(self.mine)]).max(initial=0)
        self.close = np.concatenate([np.zeros(0), *sizes]) * EXACT + NOTHING * largest
        self.values = dict(values or {slot: space[0] for slot, space in self.spaces.items()})
        self.least, self.factor = (1.0, True), 1.0
        if len(self.mine):
            self.take([self.values])

    @property
    def parameters(self) -> dict[str, Any]:
        made: dict[str, Any] = dict(self.fixed)
        for (name, channel), v in self.values.items():
            if channel:
                made.setdefault(name, {})[channel] = v
            else:
                made[name] = v
        return made

    def _theirs(self, each: Sequence[Mapping[Slot, float]]) -> Floats:
        """Coefficients of the loss with each of these values: `[values, all coefficients]`."""
        numbers: dict[Atom, Any] = self.reference.values(self.fixed)
        numbers |= {atom("var", "parameter", *slot): np.array([v[slot] for v in each])[:, None] for slot in self.spaces}
        made = []
        for s in self.samples:
            formulas, _ = self.reference.formulas(s.batch) or ([], 0)
            made.append(values_of(formulas, {**s.at, **numbers}, (len(each), s.coefficients.shape[1])))
        return np.concatenate([m.swapaxes(0, 1).reshape(len(each), -1) for m in made], axis=1)

    def scores(self, each: Sequence[Mapping[Slot, float]]) -> list[tuple[float, float]]:
        """For each of these values: the share of coefficients that differ, and the factor of the rest."""
        some = max(1, TOGETHER // max(s.coefficients.shape[1] for s in self.samples))
        return [found for k in range(0, len(each), some) for found in self._scores(each[k : k + some])]

    def _scores(self, each: Sequence[Mapping[Slot, float]]) -> list[tuple[float, float]]:
        theirs = self._theirs(each)
        with np.errstate(all="ignore"):
            ratios = self.mine / theirs
            ratios[~np.isfinite(ratios) | (ratios == 0) | (np.abs(self.mine) <= self.close)] = np.nan
            ratios.sort(axis=1)
            middle = np.maximum(np.isfinite(ratios).sum(1) - 1, 0) // 2
            factor = np.nan_to_num(ratios[np.arange(len(each)), middle], nan=1.0)
            short = np.array([float(f"{f:.4g}") for f in factor])
            factor = np.where(np.abs(short - factor) < EXACT * np.abs(factor), short, factor)
            fine = np.abs(self.mine - factor[:, None] * theirs) <= self.close
        return list(zip((1 - fine.mean(1)).tolist(), factor.tolist(), strict=True))

    def take(self, each: Sequence[Mapping[Slot, float]]) -> bool:
        """Takes the best of these values if they are better."""
        found = [((share, factor != 1), factor) for share, factor in self.scores(each)]
        best = min(range(len(each)), key=lambda i: found[i][0])
        if found[best][0] >= self.least:
            return False
        self.values, (self.least, self.factor) = dict(each[best]), found[best]
        return True

    def turns(self, rounds: int) -> None:
        """Tries each parameter in turn."""
        for _ in range(rounds if self.samples else 0):
            moved = [
                self.least > FOUND and self.take([{**self.values, s: v} for v in self.spaces[s]]) for s in self.spaces
            ]
            if not any(moved):
                break

    def run(self) -> Search:
        """Tries parameters one by one, then two together; and then the declared number times a factor that is left."""
        self.ask(self.all)
        self.turns(3)
        if not self.samples:
            return self
        if FOUND < self.least < (HOPELESS, True) and len(self.spaces) > 1:
            self.ask(
                [
                    Sample(s.batch, {v: x[::5] for v, x in s.at.items()}, s.coefficients[:, ::5])
                    for s in self.samples[:2]
                ],
                self.values,
            )
            for some in itertools.combinations(self.spaces, 2):
                pairs = itertools.product(*(self.spaces[s][: math.isqrt(MOST)] for s in some))
                self.take([{**self.values, **dict(zip(some, v, strict=True))} for v in pairs])
                self.turns(1)
            self.ask(self.all, self.values)
            self.turns(3)
        if not self.least[0] and self.spaces:
            k = self.factor
            self.take([{**self.values, s: short(v * f, 1e-9)} for s, v in self.values.items() for f in (k, 1 / k)])
            self._sharpen()
        return self

    def _sharpen(self) -> None:
        """Among values that are equal at all points, takes those that stay so beside their own bounds."""
        tied = {}
        for slot, space in self.spaces.items():
            scores = self.scores([{**self.values, slot: v} for v in space])
            tied[slot] = [v for v, s in zip(space, scores, strict=True) if s == (0, self.factor)][:TIED]
        bounds = bounds_of({v for some in tied.values() if len(some) > 1 for v in some})
        if len(bounds) > 1:
            more = [self.draw(s.batch, 20 * POINTS, bounds) for s in self.samples]
            self.ask([*self.samples, *more], self.values)
            for slot, some in tied.items():
                self.take([{**self.values, slot: v} for v in some])

    def unseen(self) -> tuple[str, ...]:
        """The parameters that may be doubled, or halved, and no coefficient changes."""
        seen = set()
        for slot, v in self.values.items() if self.samples else ():
            one, *two = self._theirs([self.values, *({**self.values, slot: k * v} for k in (0.5, 2.0))])
            seen |= {slot[0]} if not any(np.array_equal(one, x, equal_nan=True) for x in two) else set()
        return tuple(n for n in dict.fromkeys(n for n, _ in self.spaces) if n not in seen)


# ------------------------------------------------------------ the loss


@dataclass(frozen=True)
class Likeness:
    """A declared loss beside the function.

    `factor`: by what its gradient is multiplied. `differing`: on how many of `batches` a coefficient differs then.
    `strength`: whether equality is proved for all numbers, on rows of the lengths of `shape`, or was seen on the
    batches; '' if they differ. `is_far`: whether so many coefficients differ, by more than a factor of their batch,
    that it is not named. `same_value`: whether the loss has the same value on all batches. `unseen`: parameters that
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
        self.programs = {b: p.tokens for b, p in function.programs.items() if isinstance(p, Traced)}
        seen = {b: list(p.seen) for b, p in function.programs.items() if isinstance(p, Untraced)}
        read = ([(b, some) for b, made in of.items() if (some := constants(made))] for of in (self.programs, seen))
        exact, self.numbers = guesses(next(filter(None, read), []))
        self.samples = [self._sample(b, POINTS, bounds_of(exact)) for b in function.structures]

    def _sample(self, batch: Batch, n: int, bounds: Sequence[float]) -> Sample:
        """The coefficients at points: those of the program, or of calls where there is none."""
        made = self.programs.get(batch)
        at = points(batch, self.function.per_token, n if made else POINTS, bounds)
        if made is not None:
            return Sample(batch, at, values_of(made, at, (n,)))
        each = [self.function.evaluate(filled(batch, at, i)).coefficients for i in range(POINTS)]
        return Sample(batch, at, np.stack(each, axis=1))

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
        sizes = [np.abs(f.coefficients).max() for _, f, _ in taken if f.coefficients.any() and f.is_finite]
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
        others = [b for b, f, o in taken if not _close(f.coefficients, o.coefficients, nothing).all()]
        at = next((b for b in others if b in apart), others[0] if others else None)  # apart without a factor too
        is_far = (tokens - close) * FAR[reference.hierarchy.name not in COMMON] > tokens
        made = Likeness(reference, parameters, *counts, factor, (), is_far, search.unseen(), at)
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
    """Which coefficients are equal, beside the largest, or both `nothing`; what is no number is equal to none."""
    with np.errstate(all="ignore"):
        size = max(np.abs(x[np.isfinite(x)]).max(initial=0) for x in (one, other))
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
