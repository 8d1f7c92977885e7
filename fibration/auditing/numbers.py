"""The numbers of a function: where its gradient jumps or bends along one token's log ratio."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fibration.auditing.batch import OLD, Batch, Floats, probe
from fibration.auditing.battery import steps
from fibration.auditing.function import Found

Evaluate = Callable[[Batch], Found | None]


def slope(evaluate: Evaluate, x: Floats, sign: float, mismatch: bool = False) -> Floats:
    """The coefficients of many rows of one token (`probe`), times the number of rows and the advantage's sign."""
    found = evaluate(probe(x, np.full(len(x), sign), mismatch))
    return np.full(len(x), np.nan) if found is None else found.coefficients * len(x) * sign


def bends(evaluate: Evaluate, sign: float, mismatch: bool = False) -> list[float]:
    """The log ratios at which the coefficient of one token jumps or bends, for advantages of one sign."""
    found: list[float] = []
    for order in (0, 1):
        x = steps()
        f = _derivative(evaluate, sign, order, mismatch)
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
        found += [float(v) for v in ((low + high) / 2)[stays]]
    return _distinct(found)


def _derivative(evaluate: Evaluate, sign: float, order: int, mismatch: bool) -> Callable[[Floats], Floats]:
    if order == 0:
        return lambda x: slope(evaluate, x, sign, mismatch)
    step = 1e-7

    def f(x: Floats) -> Floats:
        both = slope(evaluate, np.concatenate([x + step, x - step]), sign, mismatch)
        return (both[: len(x)] - both[len(x) :]) / (2 * step)

    return f


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
