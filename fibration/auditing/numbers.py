"""The numbers of a function: where its gradient jumps or bends along one token's log ratio."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fibration.auditing.batch import OLD, Batch, Floats, probe
from fibration.auditing.battery import steps
from fibration.auditing.function import Found

Evaluate = Callable[[Batch], Found | None]
OTHERS = 4  # rows beside each probe of a function of rewards: pass@4 needs as many


def slope(evaluate: Evaluate, x: Floats, sign: float, both: bool = False) -> Floats:
    """The coefficients of many rows of one token (`probe`), times the number of rows and the advantage's sign.

    `both`: each row has one beside it with the other sign, so that standardised advantages keep theirs.
    """
    signs = np.repeat([sign, -sign][: 1 + both], len(x))
    found = evaluate(probe(np.tile(x, 1 + both), signs))
    return np.full(len(x), np.nan) if found is None else found.coefficients[: len(x)] * len(signs) * sign


class Probe:
    """A function along one token's log ratio. Where other rows decide too, each token has a batch of its own."""

    def __init__(self, evaluate: Evaluate, sign: float, mismatch: bool, rewards: bool) -> None:
        self.evaluate, self.sign, self.mismatch = evaluate, sign, mismatch
        self.others = OTHERS if rewards else 0
        x = steps()[::9]
        many, few = self._together(x), self._together(x[::2])
        self.is_alone = not bool((np.abs(many[::2] - few) <= 1e-9 * np.abs(many).max()).all())

    def __call__(self, x: Floats) -> Floats:
        if not self.is_alone:
            return self._together(x)
        return np.array([self._one(float(v)) for v in x])

    def _together(self, x: Floats) -> Floats:
        b = probe(x, np.full(len(x), self.sign), self.mismatch, self.others)
        found = self.evaluate(b)
        if found is None:
            return np.full(len(x), np.nan)
        return found.coefficients[:: 1 + self.others] * b.tokens * self.sign

    def _one(self, x: float) -> float:
        """Beside a row on policy, so that a mask never leaves an empty batch."""
        b = probe(np.array([x, 0.0]), np.full(2, self.sign), self.mismatch, self.others)
        found = self.evaluate(b)
        return np.nan if found is None else float(found.coefficients[0]) * b.tokens * self.sign


def bends(evaluate: Evaluate, sign: float, mismatch: bool = False, rewards: bool = False) -> list[float]:
    """The log ratios at which the coefficient of one token jumps or bends, for advantages of one sign."""
    found: list[float] = []
    whole = Probe(evaluate, sign, mismatch, rewards)
    for order in (0, 1):
        x = steps()
        f = whole if order == 0 else _derivative(whole)
        values = f(x)
        if not np.isfinite(values).all():
            continue
        # a jump is large beside the changes next to it, and stays where the interval is halved
        change = np.abs(np.diff(values))
        beside = np.maximum(np.r_[change[1:], change[-1]], np.r_[change[0], change[:-1]])
        width = np.diff(x)
        usual = 3 * np.median(change / width) * width + 1e-6
        suspicious = np.flatnonzero(change > 1e-9 + np.minimum(4 * beside, usual))
        if not len(suspicious):
            continue
        low, high = x[suspicious], x[suspicious + 1]
        first, last = values[suspicious], values[suspicious + 1]
        size = np.abs(last - first)
        for _ in range(52 if order == 0 else 16):
            middle = (low + high) / 2
            value = f(middle)
            left = np.abs(value - first) >= np.abs(last - value)
            high, last = np.where(left, middle, high), np.where(left, value, last)
            low, first = np.where(left, low, middle), np.where(left, first, value)
            stays = np.abs(last - first) > 0.3 * size
            low, high, first, last, size = low[stays], high[stays], first[stays], last[stays], size[stays]
            if not len(low):
                break
        found += [float(v) for v in (low + high) / 2]
    return _distinct(found)


def _derivative(f: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    step = 1e-7

    def slopes(x: Floats) -> Floats:
        both = f(np.concatenate([x + step, x - step]))
        return np.asarray((both[: len(x)] - both[len(x) :]) / (2 * step))

    return slopes


def _distinct(values: list[float]) -> list[float]:
    kept: list[float] = []
    for v in values:  # jumps come first, and are known more closely than bends
        if all(abs(v - k) > 1e-5 for k in kept):
            kept.append(v)
    return kept


def written(x: float) -> list[float]:
    """Numbers from which a bound at the log ratio `x` may have been computed."""
    r = float(np.exp(x))
    p = float(np.exp(OLD + x) - np.exp(OLD))
    found = [r - 1, 1 - r, r, 1 / r, x, -x, x * x, p, -p, 1 / r - 1, 1 - 1 / r]
    return [n for v in found if v > 1e-7 for n in {nice(v), nice(v, 2e-5)}]


def nice(value: float, within: float = 1e-9) -> float:
    """The decimal of at most five digits that is as good as the value, or the value."""
    for digits in range(1, 6):
        near = float(f"{value:.{digits}g}")
        if abs(near - value) <= within * max(1.0, abs(value)):
            return near
    return value
