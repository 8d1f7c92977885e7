"""Numbers in words: fractions exact or to six digits, counts of elements, values for JSON."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from typing import Any

import mpmath

from fibration.language.atoms import Stratum
from fibration.language.exact import FIFTY_DIGITS
from fibration.language.expressions import LARGEST, SMALLEST

LARGEST_EXACT = 10**20  # the largest numerator or denominator that a rounded result may have and count as exact
MOST_BITS = 2**12  # bits: Python refuses to write more than 4300 digits


def plural(name: str) -> str:
    """`trajectories` for `trajectory`."""
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


def number(n: int, stratum: Stratum) -> str:
    """`1 trajectory`, `2 trajectories`."""
    return f"{n} {stratum.name if n == 1 else plural(stratum.name)}"


def shown(value: Fraction) -> str:
    """Six digits of a number, of any size."""
    if _is_ordinary(value):
        return f"{float(value):.6g}"
    return str(mpmath.nstr(mpmath.mpf(value.numerator) / value.denominator, 6))


class Rounded(Fraction):
    """A number known to fifty digits, since its formula has an exponential, a logarithm or a root."""


def rounded(value: Fraction, tolerance: Fraction) -> Fraction:
    """A result that may be off by `tolerance`: `Rounded`, unless it is a fraction of few digits."""
    return Rounded(value) if tolerance and max(abs(value.numerator), value.denominator) > LARGEST_EXACT else value


def in_full(value: Fraction) -> str:
    """A number for a reader: exact, or six digits if it is `Rounded` or if no float64 holds it."""
    if not _is_ordinary(value):
        return shown(value)
    if not isinstance(value, Rounded):
        return str(value)
    short = shown(value)
    return short if Fraction(short).denominator > 1 or value.denominator == 1 else _decimal(value)  # not a whole number


def in_brief(*values: Fraction) -> str:
    """Fractions as `in_full`, or six digits of one whose denominator is large; with commas between them."""
    return ", ".join(in_full(v) if v.denominator < 10**6 else shown(v) for v in values)


def named(word: str, *values: Fraction) -> str:
    """`log ratio 1/2`, `log ratios 1/2, -1`."""
    return f"{word}{'s' * (len(values) > 1)} {in_brief(*values)}"


def written(value: object) -> Any:
    """A value for JSON: rational numbers as exact `"p/q"`; `Rounded` and very large ones with fifty digits."""
    if isinstance(value, (tuple, list)):
        return [written(v) for v in value]
    if isinstance(value, Fraction):
        return _decimal(value) if isinstance(value, Rounded) or _size(value) > MOST_BITS else str(value)
    return value if value is None or isinstance(value, int) else str(value)


def _decimal(value: Fraction) -> str:
    with localcontext(prec=FIFTY_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN):
        return str(Decimal(value.numerator) / value.denominator)


def _is_ordinary(value: Fraction) -> bool:
    return value == 0 or (SMALLEST < abs(value) < LARGEST and _size(value) <= MOST_BITS)


def _size(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
