"""The language's functions on Fractions: exact where the result is rational, fifty digits where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

FIFTY_DIGITS = 50


def transcendental(name: str) -> Callable[[Fraction], Fraction]:
    """Fifty correct digits as a Fraction: enough to decide every comparison a test makes."""

    def compute(x: Fraction) -> Fraction:
        import mpmath

        with mpmath.workdps(FIFTY_DIGITS):
            y = getattr(mpmath, name)(mpmath.mpf(x.numerator) / x.denominator)
            if not mpmath.isfinite(y):
                raise ZeroDivisionError(f"{name}({x})")
            sign, mantissa, exponent, _ = mpmath.mpf(y)._mpf_
            return Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** exponent

    return compute


def sqrt(x: Fraction) -> Fraction:
    """Exact for squares, so that `sqrt(x*x) <= x` is decided right."""
    if x >= 0:
        root = Fraction(math.isqrt(x.numerator), math.isqrt(x.denominator))
        if root * root == x:
            return root
    return transcendental("sqrt")(x)


def sigmoid(x: Fraction) -> Fraction:
    return 1 / (1 + transcendental("exp")(-x))
