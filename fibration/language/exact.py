"""The language's functions on Fractions: exact where the result is rational, fifty digits where it is not.

Where a function has no value they raise `NoValue`, and nothing else does: any other error is a defect.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction

import mpmath

FIFTY_DIGITS = 50
MOST_BITS = 2**31  # of a result


class _Digits(threading.local):
    """A context of mpmath's per thread: its own is the user's, and one for all threads."""

    def __init__(self) -> None:
        self.context = mpmath.MPContext()


_DIGITS = _Digits()


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
        digits = _DIGITS.context
        digits.dps = FIFTY_DIGITS  # some functions take more meanwhile, and one that was interrupted has left them
        y = getattr(digits, name)(digits.mpf(x.numerator) / x.denominator)
        if isinstance(y, digits.mpc) or not digits.isfinite(y):
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
