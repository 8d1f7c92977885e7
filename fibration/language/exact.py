"""The language's functions on Fractions: exact where the result is rational, fifty digits where it is not.

The functions raise `NoValue` where they have no value, and `TooLarge` for a value with too many digits. Any other error
is a defect.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import Any

FIFTY_DIGITS = 50
MOST_BITS = 2**18  # of a numerator or denominator: an operation on two such numbers takes at most a tenth of a second


class _Digits(threading.local):
    """One mpmath context per thread. The context that mpmath exports is the user's, and shared by all threads."""

    @cached_property
    def context(self) -> Any:
        import mpmath

        return mpmath.MPContext()


_DIGITS = _Digits()


class NoValue(ArithmeticError):
    """A division by 0, or a logarithm or root outside its domain."""


class TooLarge(ArithmeticError):
    """A value has too many digits to compute with, so nothing is known about it."""

    def __init__(self) -> None:
        super().__init__(f"a number of more than {MOST_BITS} binary digits")


def bounded(value: Any) -> Any:
    """Returns the value, or raises `TooLarge` if it has too many digits, so that no single operation takes long."""
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise TooLarge
    return value


def divide(a: Fraction, b: Fraction) -> Fraction:
    if b == 0:
        raise NoValue("a division by 0")
    return a / b


def transcendental(name: str) -> Callable[[Fraction], Fraction]:
    """Returns a function whose value is a Fraction of fifty correct digits: enough for every comparison in a test."""

    def compute(x: Fraction) -> Fraction:
        if name == "exp" and abs(x) > MOST_BITS:
            raise TooLarge
        digits = _DIGITS.context
        digits.dps = FIFTY_DIGITS  # some functions increase it, and an interrupted one has not reset it
        y = getattr(digits, name)(digits.mpf(x.numerator) / x.denominator)
        if isinstance(y, digits.mpc) or not digits.isfinite(y):
            raise NoValue(name)
        sign, mantissa, exponent, _ = y._mpf_
        if abs(exponent) > MOST_BITS:
            raise TooLarge
        return Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** exponent

    return compute


def root(x: Fraction) -> Fraction | None:
    """Returns the root of a square, and None for any other number."""
    found = Fraction(math.isqrt(x.numerator), math.isqrt(x.denominator)) if x >= 0 else None
    return found if found is not None and found * found == x else None


def sqrt(x: Fraction) -> Fraction:
    """Returns the root, exact for squares, so that `sqrt(x*x) <= x` is decided correctly."""
    found = root(x)
    return transcendental("sqrt")(x) if found is None else found


def sigmoid(x: Fraction) -> Fraction:
    return 1 / (1 + transcendental("exp")(-x))
