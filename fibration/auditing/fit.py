"""Parameters of a declared loss with which it gives a function's coefficients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fibration.auditing.batch import Batch, Floats
from fibration.auditing.function import Found
from fibration.auditing.numbers import nice
from fibration.auditing.reference import Reference

EXACT = 2e-6  # relative to the largest coefficient of a batch: functions write ÷ (n + 1e-6) for ÷ n
Slot = tuple[str, str]  # a parameter and its channel, or ''


@dataclass(frozen=True)
class Target:
    """A batch, and what the function makes of it."""

    batch: Batch
    found: Found


def differs(found: Found, other: Found | None) -> Floats:
    """By how much coefficients differ, relative to the largest: `[tokens]`."""
    if other is None or not (np.isfinite(other.coefficients).all() and np.isfinite(found.coefficients).all()):
        return np.full(len(found.coefficients), np.inf)
    scale = max(float(np.abs(found.coefficients).max(initial=0)), float(np.abs(other.coefficients).max(initial=0)))
    return np.asarray(np.abs(found.coefficients - other.coefficients) / (scale or 1.0))


class Fit:
    """A search for parameters: first among given numbers, then along gradients."""

    def __init__(self, reference: Reference, targets: Sequence[Target], fixed: Mapping[str, Any]) -> None:
        self.reference, self.targets, self.fixed = reference, targets, dict(fixed)
        h = reference.hierarchy
        declared = [p for p in h.parameters.values() if p.name not in fixed]
        self.values: dict[Slot, float] = {}
        self.least = (0, 0.0)
        for p in declared:
            default = p.default_items() or ([("+", 1.0), ("-", 1.0)] if p.per_channel else [("", 1.0)])
            if p.per_channel and len(default) == 1:
                default = [("+", default[0][1]), ("-", default[0][1])]
            self.values |= {(p.name, c): float(v) for c, v in default}

    def parameters(self, values: Mapping[Slot, float]) -> dict[str, Any]:
        made: dict[str, Any] = dict(self.fixed)
        for (name, channel), v in values.items():
            if channel:
                made.setdefault(name, {})[channel] = v
            else:
                made[name] = v
        return made

    def error(self, values: Mapping[Slot, float]) -> Floats:
        given = self.parameters(values)
        if not self.targets:
            return np.zeros(0)
        return np.concatenate([differs(t.found, self.reference.evaluate(t.batch, given)) for t in self.targets])

    def score(self, values: Mapping[Slot, float]) -> tuple[int, float]:
        """The number of tokens that differ, and by how much all do."""
        error = self.error(values)
        return int((error > EXACT).sum()), float(np.minimum(error, 10.0).sum())

    def among(self, numbers: Iterable[float]) -> bool:
        """Takes the best parameters among given numbers. Returns whether they reproduce the function on all targets."""
        best, least = dict(self.values), self.score(self.values)
        tried = sorted(set(numbers))
        for _ in range(3):
            before = least
            for slot in best:
                for v in tried:
                    other = {**best, slot: v}
                    if least[0] and other != best and (score := self.score(other)) < least:
                        best, least = other, score
            if least == before or not least[0] or 2 * least[0] > sum(len(t.found.coefficients) for t in self.targets):
                break
        self.values, self.least = best, least
        return not least[0]

    def run(self, numbers: Sequence[float]) -> None:
        """Improves bounds and other parameters in turns: a bound is found once the scale is right."""
        start = dict(self.values)
        found = []
        for first in (self.among, lambda _: False):  # some scales are found only with the bounds as declared
            self.values = dict(start)
            if first(numbers):
                return
            self.along_gradients()
            if self.among(numbers):
                return
            found.append((self.least, self.values))
        self.least, self.values = min(found, key=lambda x: x[0])

    def along_gradients(self) -> None:
        """Improves parameters that are no bounds by Gauss-Newton steps, in their logarithms."""
        best, least = dict(self.values), self.score(self.values)
        for scale in (1.0, 0.2, 5.0):
            values = {s: v * scale for s, v in best.items()}
            for _ in range(12):
                error = self._signed(values)
                if error is None or not np.isfinite(error).all():
                    break
                columns = []
                for slot, v in values.items():
                    moved = self._signed({**values, slot: v * (1 + 1e-6)})
                    columns.append(np.zeros_like(error) if moved is None else (moved - error) / 1e-6)
                jacobian = np.stack(columns, 1) if columns else np.zeros((len(error), 0))
                if not jacobian.any() or not np.isfinite(jacobian).all():
                    break
                step = np.clip(np.linalg.lstsq(jacobian, -error, rcond=1e-10)[0], -1.5, 1.5)
                values = {s: v * float(np.exp(d)) for (s, v), d in zip(values.items(), step, strict=True)}
                if np.abs(step).max() < 1e-13:
                    break
            for candidate in ({s: nice(v, 1e-7) for s, v in values.items()}, values):
                if (score := self.score(candidate)) < least:
                    best, least = dict(candidate), score
            if not least[0]:
                break
        self.values, self.least = best, least

    def unseen(self) -> tuple[str, ...]:
        """The parameters that may be doubled, or halved, and no coefficient of the targets changes."""
        found = self.error(self.values)

        def decides(slot: Slot) -> bool:
            moved = (self.error({**self.values, slot: k * self.values[slot]}) for k in (0.5, 2.0))
            return all(not np.array_equal(found, other) for other in moved)

        names = dict.fromkeys(name for name, _ in self.values)
        return tuple(n for n in names if not any(decides(slot) for slot in self.values if slot[0] == n))

    def _signed(self, values: Mapping[Slot, float]) -> Floats | None:
        parts = []
        for t in self.targets:
            other = self.reference.evaluate(t.batch, self.parameters(values))
            if other is None or not np.isfinite(other.coefficients).all():
                return None
            scale = float(np.abs(t.found.coefficients).max(initial=0)) or 1.0
            parts.append((other.coefficients - t.found.coefficients) / scale)
        return np.concatenate(parts)
