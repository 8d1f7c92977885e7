"""Bounds to the last digits: where no batch tells two values of a bound apart, a path of batches between them does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fibration.auditing.batch import Batch, Floats
from fibration.auditing.fit import Fit, Slot
from fibration.auditing.function import Function
from fibration.auditing.joined import Joined, Layout
from fibration.auditing.numbers import nice
from fibration.errors import AuditError

PRECISE = 1e-7  # relative: a bound that is known so well is sharp
WIDEST = 16.0  # by which factor a value is moved in search of a batch that notices
STEPS = np.concatenate([-np.geomspace(1e-3, 0.7, 14), np.geomspace(1e-3, 1.5, 14)])  # of a path, both ways
State = Callable[[float], bool | None]
TRIES = 4  # tokens whose path is tried, for each end of a range


@dataclass(frozen=True)
class Range:
    """Values of a parameter between which no batch tells: the loss is the same, and beyond an end it is another."""

    low: float
    high: float

    @property
    def is_sharp(self) -> bool:
        return self.high - self.low <= PRECISE * max(abs(self.low), abs(self.high))

    @property
    def shortest(self) -> float:
        """The number of the fewest digits in the range."""
        middle = (self.low + self.high) / 2
        found = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
        return next((v for v in found if self.low < v < self.high), middle)


def sharpen(fit: Fit, function: Function) -> dict[str, Range]:
    """Makes the bounds of a fit that is exact on its batches those of the function.

    Returns the parameters that stay a range: no batch was found that tells more.
    """
    unsure: dict[str, Range] = {}
    for slot in fit.values:
        low, high = _end(fit, slot, -1), _end(fit, slot, 1)
        if low is None and high is None:  # nothing shows it
            continue
        known = Range(*(_far(fit, slot, way) if v is None else v for v, way in ((low, -1), (high, 1))))
        if known.is_sharp:
            continue
        found = next((v for path in _paths(fit, slot, known) if (v := path.bound(function)) is not None), None)
        if found is None and None in (low, high):  # no batch reaches it
            continue
        better = known.shortest if found is None else nice(found, 1e-9)
        if not fit.scores([{**fit.values, slot: better}])[0][2]:
            fit.values = {**fit.values, slot: better}
        if found is None:
            unsure[slot[0]] = known
    return unsure


def _moved(fit: Fit, slot: Slot, way: int, by: Floats) -> Floats:
    """The value of a parameter, moved within its bounds. `by`: how far, in its logarithm."""
    value, upper = fit.values[slot], fit.reference.hierarchy.parameters[slot[0]].upper
    if upper is not None and way > 0:
        return np.asarray(upper - (upper - value) * np.exp(-by))
    return np.asarray(value * np.exp(way * by))


def _far(fit: Fit, slot: Slot, way: int) -> float:
    return float(_moved(fit, slot, way, np.log([WIDEST]))[0])


def _end(fit: Fit, slot: Slot, way: int) -> float | None:
    value, base = fit.values[slot], fit.coefficients([fit.values])[0]
    size = np.abs(base).max(initial=0) * 1e-12

    def changed(values: Floats) -> list[bool]:
        other = fit.coefficients([{**fit.values, slot: float(v)} for v in values])
        return [not bool((np.abs(o - base) <= size).all()) for o in other]

    moves = np.concatenate([10.0 ** -np.arange(10, 0, -1.0), np.log([1.5, 2, 4, WIDEST])])
    tried = _moved(fit, slot, way, moves)
    first = next((i for i, c in enumerate(changed(tried)) if c), None)
    if first is None:
        return None
    near, far = (float(tried[first - 1]) if first else value), float(tried[first])
    for _ in range(12):
        if abs(far - near) <= 1e-13 * abs(value):
            break
        between = np.linspace(near, far, 17)
        k = next(i for i, c in enumerate([*changed(between[1:-1]), True]) if c)
        near, far = float(between[k]), float(between[k + 1])
    return far


def _paths(fit: Fit, slot: Slot, known: Range) -> Iterator[_Path]:
    """Paths of tokens that notice the end of the range, in the smallest batches first."""
    outside = (known.low * (1 - 1e-9), known.high * (1 + 1e-9))
    base, low, high = fit.coefficients([fit.values, *({**fit.values, slot: v} for v in outside)])
    joined = fit.targets.joined
    for other in (high, low):
        notices = np.flatnonzero(np.abs(other - base) > 1e-9 * np.abs(base).max(initial=0))
        sizes = np.array(joined.lengths)[joined.batch_of_token[notices]]
        seen: set[int] = set()
        for token in notices[np.argsort(sizes, kind="stable")]:
            b = int(joined.batch_of_token[token])
            if b not in seen and len(seen) < TRIES:
                seen.add(b)
                yield _Path(fit, slot, outside, joined.batches[b], int(token - joined.starts[b]))


@dataclass(frozen=True)
class _Path:
    """`batch` with all log-probs times a number, and so all log ratios; one token is watched.

    Between the ends of the range, the loss with the low end and with the high end give that token other coefficients.
    """

    fit: Fit
    slot: Slot
    ends: tuple[float, float]
    batch: Batch
    token: int
    _layouts: dict[Any, Layout] = field(default_factory=dict)  # of all batches of the path

    def _losses(self, batch: Batch, values: Floats) -> Floats:
        """The watched coefficient for values of the parameter."""
        each = [self.fit.parameters({**self.fit.values, self.slot: float(v)}) for v in values]
        return self.fit.reference.evaluate_each(Joined((batch,), self._layouts), each)[0][:, self.token]

    def bound(self, function: Function) -> float | None:
        """The parameter of the function; None if the path does not show it."""

        def is_high(t: float) -> bool | None:
            """Whether the function is as the loss with the high end; None if both ends give the same."""
            batch = self.batch.scaled(t)
            low, high = self._losses(batch, np.array(self.ends))
            if not abs(high - low) > 1e-9 * max(abs(high), abs(low)):
                return None
            mine = function.evaluate(batch).coefficients[self.token]
            return bool(abs(mine - high) < abs(mine - low))

        try:
            return self._bound(is_high)
        except AuditError:  # the function does not take a batch of the path
            return None

    def _bound(self, is_high: State) -> float | None:
        start = is_high(1.0)
        if start is None:
            return None
        for steps in (STEPS[STEPS > 0], STEPS[STEPS < 0]):
            near = 1.0
            for t in 1 + steps:
                state = is_high(float(t))
                if state is start:
                    near = float(t)
                    continue
                found = self._between(near, float(t), start, is_high)
                if found is not None:
                    return found
                break
        return None

    def _between(self, near: float, far: float, start: bool, is_high: State) -> float | None:
        """The bound, if the function's state changes between two places of the path."""
        seen = False
        for _ in range(60):
            middle = (near + far) / 2
            if middle in (near, far):
                break
            state = is_high(middle)
            if state is start:
                near = middle
            else:
                seen |= state is not None
                far = middle
        if not seen:  # the loss with both ends changed there, and the function with it
            return None
        low, high = self.ends
        batch = self.batch.scaled(near)
        ends = self._losses(batch, np.array(self.ends))
        for _ in range(14):
            between = np.linspace(low, high, 17)
            values = self._losses(batch, between)
            is_up = np.abs(values - ends[1]) < np.abs(values - ends[0])
            k = int(np.argmax(is_up))
            if not k:
                return None
            low, high = float(between[k - 1]), float(between[k])
            if high - low <= 1e-14 * abs(high):
                break
        return (low + high) / 2
