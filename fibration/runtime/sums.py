"""Exact sums: their bits depend on the numbers alone, not on the order, nor on which rank adds which part.

`Sums` adds any numbers, on the host, while an index is built. `sum_of_multiples` adds what a compiled program has cut
into whole multiples of a unit (compiler/spread.py), on any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Codes = NDArray[np.int64]
Vector = NDArray[np.float64]


def steps(ascending: Codes) -> Codes:
    """The differences of neighbours. `np.diff` takes five times as long on a few rows."""
    return ascending[1:] - ascending[:-1]


WIDTH = 28  # bits of a digit
BLOCK = 1 << 17  # numbers that fit in a CPU cache
EXACT = 2.0**53  # a float64 has all whole numbers up to here
CHUNK = 1 << 24  # so many digits add up in a float64 without rounding


@dataclass(frozen=True)
class Sums:
    """`Σ_k digits[k]·2^(28k)` per element, exactly. The digits of a number do not depend on the other numbers."""

    size: int
    digits: Mapping[int, Codes]  # [elements]

    @staticmethod
    def of(values: Vector, at: Codes, size: int) -> Sums:
        """The sum of finite `values` over each element; `values[i]` belongs to element `at[i]`."""
        found = Sums(size, {})
        step = min(max(size, BLOCK), CHUNK)
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            found = found.plus(_added(values[part], at[part], size))
        return found

    def plus(self, other: Sums) -> Sums:
        digits = dict(self.digits)
        for k, more in other.digits.items():
            digits[k] = digits[k] + more if k in digits else more
        return Sums(self.size, digits)

    def over(self, parent: Codes, size: int) -> Sums:
        """The sums over coarser elements; `parent[i]` is the coarser element of element i."""
        digits = {}
        for k, mine in self.digits.items():
            digits[k] = np.zeros(size, np.int64)
            np.add.at(digits[k], parent, mine)
        return Sums(size, digits)

    def values(self) -> Vector:
        """float64 [elements], within a few roundings of the exact sum."""
        total = np.zeros(self.size)
        with np.errstate(over="ignore"):
            for k in sorted(self.digits):
                total += np.ldexp(self.digits[k].astype(np.float64), WIDTH * k)
        return total


def _added(values: Vector, at: Codes, size: int) -> Sums:
    digits: dict[int, Codes] = {}
    while (largest := float(np.max(np.abs(values), initial=0))) > 0:
        k = (int(np.frexp(largest)[1]) - 1) // WIDTH
        digit = np.trunc(_scaled(values, -WIDTH * k))
        values = values - _scaled(digit, WIDTH * k)
        digits[k] = np.bincount(at, weights=digit, minlength=size).astype(np.int64)
    return Sums(size, digits)


def _scaled(values: Vector, power: int) -> Vector:
    return values * 2.0**power if abs(power) < 1000 else np.ldexp(values, power)


def sum_of_multiples(values: Tensor, at: Tensor, size: int, unit: float) -> Tensor:
    """The sums of whole multiples of `unit` over each of `size` elements, rounded once: float64 [size].

    `values[i]` belongs to element `at[i]`. The sum of a number that is not finite, or exceeds 2^53 units, is NaN.
    """
    multiples = values / unit
    exact = multiples.abs() <= EXACT
    total = torch.zeros(size, dtype=torch.int64, device=values.device)
    lost = torch.zeros_like(total).index_add_(0, at, (~exact).long())
    total.index_add_(0, at, torch.where(exact, multiples, 0.0).long())
    return torch.where(lost > 0, torch.nan, total.double() * unit)
