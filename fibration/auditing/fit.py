"""Parameters of a declared loss with which it gives a function's coefficients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fibration.auditing.batch import Batch, Floats
from fibration.auditing.function import Found
from fibration.auditing.joined import Codes, Joined
from fibration.auditing.numbers import nice
from fibration.auditing.reference import Reference

EXACT = 2e-6  # relative to the largest coefficient of a batch: functions write ÷ (n + 1e-6) for ÷ n
SCALES = 2.0 ** np.arange(-8, 9)  # of a declared number, at which bounds of a batch are tried
ZOOMS = 10  # grids on the way to a bound
ROBUST = 4  # Gauss-Newton steps with all tokens
Slot = tuple[str, str]  # a parameter and its channel, or ''
Values = dict[Slot, float]
Score = tuple[int, int, int, float]
CLOSEST = 1e-5  # between neighbours
JUMP = 1e-4  # relative: neighbours that differ by more have a jump between them


@dataclass(frozen=True)
class Target:
    """A batch, and what the function makes of it."""

    batch: Batch
    found: Found


@dataclass(frozen=True)
class Targets:
    """What a function makes of several batches. `coefficients` `[tokens]`, `values` `[batches]`."""

    joined: Joined
    coefficients: Floats
    values: Floats

    @classmethod
    def of(cls, targets: Sequence[Target]) -> Targets:
        coefficients = np.concatenate([np.zeros(0), *(t.found.coefficients for t in targets)])
        return cls(Joined(tuple(t.batch for t in targets)), coefficients, np.array([t.found.value for t in targets]))

    @cached_property
    def neighbours(self) -> tuple[Codes, Codes]:
        """Tokens of rows of one token that follow each other in a batch, with almost the same log-probs."""
        x, rollout = self.joined.log_probs("log_probs"), self.joined.log_probs("rollout_log_probs")
        near = (np.abs(np.diff(x)) < CLOSEST) & (np.abs(np.diff(rollout)) < CLOSEST)
        probes = np.concatenate([np.zeros(0, bool), *(np.full(b.tokens, b.is_probe) for b in self.joined.batches)])
        first = np.flatnonzero(near & probes[:-1] & (np.diff(self.joined.batch_of_token) == 0))
        return first, first + 1

    def jumps(self, other: Floats) -> Floats:
        """Between how many neighbours the function jumps and a loss `[parameters, tokens]` not, or the reverse."""
        one, two = self.neighbours

        def jump(c: Floats) -> Floats:
            a, b = c[..., one], c[..., two]
            with np.errstate(all="ignore"):
                return np.asarray(np.abs(a - b) > JUMP * np.maximum(np.abs(a), np.abs(b)))

        return np.asarray((jump(other) != jump(self.coefficients)).sum(-1))

    def subset(self, which: Sequence[int]) -> Targets:
        if len(which) == len(self.values):
            return self
        chosen = np.isin(self.joined.batch_of_token, which)
        joined = Joined(tuple(self.joined.batches[i] for i in which))
        return Targets(joined, self.coefficients[chosen], self.values[list(which)])

    @cached_property
    def scale(self) -> Floats:
        """The largest coefficient of each batch."""
        return self.joined.largest(np.abs(self.coefficients))

    def differ(self, other: Floats) -> Floats:
        """By how much coefficients `[..., tokens]` differ, relative to the largest of their batch."""
        with np.errstate(all="ignore"):
            scale = np.maximum(self.scale, self.joined.largest(np.abs(other)))
            scale = np.where(scale > 0, scale, 1.0)[..., self.joined.batch_of_token]
            error = np.abs(other - self.coefficients) / scale
        return np.where(np.isfinite(error) & np.isfinite(scale), error, np.inf)

    def differ_in_shape(self, other: Floats) -> Floats:
        """How many tokens differ by more than one factor of their batch. `other`: `[parameters, tokens]`."""
        count = np.zeros(len(other))
        for i, end in enumerate(self.joined.starts[1:]):
            mine, theirs = self.coefficients[self.joined.starts[i] : end], other[:, self.joined.starts[i] : end]
            with np.errstate(all="ignore"):
                factors = np.where((mine != 0) & (theirs != 0), mine / theirs, np.inf)
                factors.sort(axis=1)
                middle = np.maximum(np.isfinite(factors).sum(1) - 1, 0) // 2
                factor = factors[np.arange(len(factors)), middle]
                factor = np.where(np.isfinite(factor), factor, 1.0)[:, None]
                close = np.abs(mine - factor * theirs) <= EXACT * np.abs(mine).max(initial=0)
            count += (~close).sum(1)
        return count


def differs(found: Found, other: Found | None) -> Floats:
    """By how much finite coefficients differ from others, relative to the largest: `[tokens]`."""
    if other is None or not np.isfinite(other.coefficients).all():
        return np.full(len(found.coefficients), np.inf)
    scale = max(float(np.abs(found.coefficients).max(initial=0)), float(np.abs(other.coefficients).max(initial=0)))
    return np.asarray(np.abs(found.coefficients - other.coefficients) / (scale or 1.0))


class Fit:
    """A search for parameters: among given numbers, along gradients, and along bounds that batches show."""

    def __init__(self, reference: Reference, targets: Targets, fixed: Mapping[str, Any]) -> None:
        self.reference, self.fixed = reference, dict(fixed)
        self.targets = targets.subset(reference.taken(targets.joined))
        declared = [p for p in reference.hierarchy.parameters.values() if p.name not in fixed]
        self.values: Values = {}
        for p in declared:
            default = p.default_items() or ([("+", 1.0), ("-", 1.0)] if p.per_channel else [("", 1.0)])
            if p.per_channel and len(default) == 1:
                default = [("+", default[0][1]), ("-", default[0][1])]
            self.values |= {(p.name, c): float(v) for c, v in default}
        self.declared = dict(self.values)
        self.least: Score = self.scores([self.values])[0]

    def parameters(self, values: Mapping[Slot, float]) -> dict[str, Any]:
        made: dict[str, Any] = dict(self.fixed)
        for (name, channel), v in values.items():
            if channel:
                made.setdefault(name, {})[channel] = v
            else:
                made[name] = v
        return made

    def coefficients(self, each: Sequence[Values]) -> Floats:
        """Of the loss with each of these values: `[values, tokens]`."""
        if not len(self.targets.values):
            return np.zeros((len(each), 0))
        return self.reference.evaluate_each(self.targets.joined, [self.parameters(v) for v in each])[0]

    def scores(self, each: Sequence[Values]) -> list[Score]:
        """How many jumps are elsewhere; how many tokens differ by more than a factor of their batch; how many differ;
        and by how much all do.
        """
        if not len(self.targets.values):
            return [(0, 0, 0, 0.0)] * len(each)
        other = self.coefficients(each)
        error = self.targets.differ(other)
        jumps = self.targets.jumps(other)
        shape = np.full(len(each), other.shape[1])  # is compared where jumps are equal
        shape[jumps == jumps.min()] = self.targets.differ_in_shape(other[jumps == jumps.min()])
        rows = zip(jumps, shape, (error > EXACT).sum(1), np.minimum(error, 10.0).sum(1), strict=True)
        return [(int(j), int(s), int(n), float(e)) if n else (0, 0, 0, float(e)) for j, s, n, e in rows]

    @property
    def is_exact(self) -> bool:
        return not self.least[2]

    def widen(self, targets: Targets) -> bool:
        """Takes more targets. Returns whether they are reproduced too."""
        self.targets = targets.subset(self.reference.taken(targets.joined))
        self.least = self.scores([self.values])[0]
        return self.is_exact

    def keep_best(self, each: Sequence[Values]) -> bool:
        """Takes the best of these values if they are better. Returns whether they are."""
        found = self.scores(each) if each else []
        best = min(range(len(found)), key=lambda i: found[i], default=None)
        if best is None or found[best] >= self.least:
            return False
        self.values, self.least = dict(each[best]), found[best]
        return True

    def restart(self) -> None:
        """Takes the declared numbers."""
        self.values = dict(self.declared)
        self.least = self.scores([self.values])[0]

    def among(self, numbers: Iterable[float]) -> bool:
        """Takes the best parameters among given numbers. Returns whether they reproduce the function on all targets."""
        tried = sorted(set(numbers))
        for _ in range(3):
            better = False
            for slot in self.values:
                if not self.is_exact:
                    better |= self.keep_best([{**self.values, slot: v} for v in tried if v != self.values[slot]])
            if self.is_exact or not better or 2 * self.least[1] > len(self.targets.coefficients):
                break
        return self.is_exact

    def run(self, numbers: Sequence[float]) -> None:
        """Improves bounds and other parameters in turns: a bound is found once the scale is right."""
        found = []
        for first in (self.among, lambda _: False):  # some scales are found only with the bounds as declared
            self.restart()
            if first(numbers):
                return
            held = {slot for slot, v in self.values.items() if v in numbers}
            for slot in held:
                self.along_gradients(set(self.values) - {slot}, {**self.values, slot: self.declared[slot]})
            for still in (held, set()) if held else (set(),):
                self.along_gradients(still)
                if self.is_exact or self.among(numbers):
                    return
            found.append((self.least, self.values))
        self.least, self.values = min(found, key=lambda x: x[0])

    def along_bounds(self) -> bool:
        """Takes the best bounds on a grid that narrows around them. Returns whether they reproduce the function."""
        for _ in range(3):
            before = self.least
            for slot in self.values:
                if not self.is_exact:
                    self._zoom(slot)
            if not self.is_exact:
                self.along_gradients(set())
            if self.is_exact or self.least == before:
                break
        return self.is_exact

    def _zoom(self, slot: Slot) -> None:
        """The best value of a parameter: of a coarse grid, and of finer ones between the neighbours of the best."""
        declared, upper = self.declared[slot], self.reference.hierarchy.parameters[slot[0]].upper
        below = [] if upper is None else [upper - (upper - declared) * k for k in SCALES]
        grid = np.unique([self.values[slot], *(declared * SCALES), *(v for v in below if v > 0)])
        for _ in range(ZOOMS):
            each = [{**self.values, slot: float(v)} for v in grid]
            scores = self.scores(each)
            best = [i for i, score in enumerate(scores) if score[:3] == min(scores)[:3]]
            run = [i for i in best if i - best[0] == best.index(i)]  # next to each other
            self.keep_best([each[run[len(run) // 2]], each[scores.index(min(scores))]])
            wrong = self.targets.differ(self.coefficients([each[i] for i in run])) > EXACT
            changes = np.flatnonzero((wrong[1:] != wrong[:-1]).any(1))  # other tokens are wrong: the bound is between
            first, last = (run[0] - 1, run[-1] + 1) if not len(changes) else (run[changes[0]], run[changes[0]] + 1)
            low, high = grid[max(first, 0)], grid[min(last, len(grid) - 1)]
            if self.is_exact or not high - low > 1e-12 * abs(high):
                break
            grid = np.linspace(low, high, 17)

    def along_gradients(self, still: Collection[Slot], start: Values | None = None) -> None:
        """Improves parameters by Gauss-Newton steps, in their logarithms; those that stand `still` are left.

        `start`: where they start, once; None: at the present values, and at smaller and larger ones.
        """
        scales = (1.0,) if start else (1.0, 0.2, 5.0)
        start, slots = start or dict(self.values), [s for s in self.values if s not in still]
        for scale in scales if slots else ():
            values = {s: v * (scale if s in slots else 1.0) for s, v in start.items()}
            for turn in range(15):
                each = [values, *({**values, s: values[s] * (1 + 1e-6)} for s in slots)]
                error = (self.coefficients(each) - self.targets.coefficients) / self._scale
                if not np.isfinite(error[0]).all():
                    break
                moved = np.asarray(np.isfinite(error[1:]).all(axis=1))
                jacobian = np.where(moved[:, None], (error[1:] - error[0]) / 1e-6, 0.0).T
                if turn > ROBUST:  # a token on the wrong side of a bound says nothing
                    size = np.abs(error[0])
                    jacobian = jacobian * (size <= 10 * np.median(size) + 1e-9)[:, None]
                if not jacobian.any():
                    break
                step = np.clip(np.linalg.lstsq(jacobian, -error[0], rcond=1e-10)[0], -1.5, 1.5)
                values |= {s: values[s] * float(np.exp(d)) for s, d in zip(slots, step, strict=True)}
                if np.abs(step).max() < 1e-13:
                    break
            self.keep_best([{s: nice(v, 1e-7) for s, v in values.items()}, values])
            if self.is_exact:
                break

    @property
    def _scale(self) -> Floats:
        scale = self.targets.scale[self.targets.joined.batch_of_token]
        return np.where(scale > 0, scale, 1.0)

    def unseen(self) -> tuple[str, ...]:
        """The parameters that may be doubled, or halved, and no coefficient of the targets changes."""
        slots = list(self.values)
        if not slots or not len(self.targets.values):
            return ()
        each = [self.values, *({**self.values, s: k * self.values[s]} for s in slots for k in (0.5, 2.0))]
        error = self.targets.differ(self.coefficients(each))
        same = {s: any(np.array_equal(error[0], error[1 + 2 * i + k]) for k in (0, 1)) for i, s in enumerate(slots)}
        names = dict.fromkeys(name for name, _ in slots)
        return tuple(n for n in names if all(same[slot] for slot in slots if slot[0] == n))
