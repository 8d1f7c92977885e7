"""The language's functions on Fractions: exact where the result is rational, fifty digits where it is not.

Where a function has no value they raise `NoValue`, and nothing else does: any other error is a defect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

FIFTY_DIGITS = 50
MOST_BITS = 2**31  # of a result


class NoValue(ArithmeticError):
    """A division by 0, a logarithm or root outside its domain, or more digits than memory holds."""


def divide(a: Fraction, b: Fraction) -> Fraction:
    if b == 0:
        raise NoValue(f"{a}/{b}")
    return a / b


def power(a: Fraction, b: Fraction) -> Fraction:
    if a == 0 > b:
        raise NoValue(f"{a}**{b}")
    return a ** int(b)


def transcendental(name: str) -> Callable[[Fraction], Fraction]:
    """Fifty correct digits as a Fraction: enough to decide every comparison a test makes."""

    def compute(x: Fraction) -> Fraction:
        import mpmath

        with mpmath.workdps(FIFTY_DIGITS):
            y = getattr(mpmath, name)(mpmath.mpf(x.numerator) / x.denominator)
            if isinstance(y, mpmath.mpc) or not mpmath.isfinite(y):
                raise NoValue(f"{name}({x})")
            sign, mantissa, exponent, _ = y._mpf_
            if abs(exponent) > MOST_BITS:
                raise NoValue(f"{name}({x})")
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
