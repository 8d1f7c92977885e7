"""Values that searches give to parameters and attributes: defaults, ends of ranges, and some between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from fibration.language.atoms import Parameter

# Values of an attribute by the position of the element; in a range, the nearest allowed value.
POSITIVE_PATTERNS: tuple[Callable[[int], Fraction], ...] = (
    lambda i: Fraction(1),
    lambda i: Fraction(i + 1),
    lambda i: Fraction(2),
    lambda i: Fraction(1, i + 2),
    lambda i: Fraction(1 if i else 1000),
)
OTHER_PATTERNS: tuple[Callable[[int], Fraction], ...] = (
    lambda i: Fraction(-1),
    lambda i: Fraction(0),
    lambda i: Fraction(i) * (-1) ** i,
)
SHARES = (Fraction(1, 2), Fraction(1, 100))  # of a range that has two ends


def same(value: Fraction) -> Callable[[int], Fraction]:
    """A value at every element."""
    return lambda i: value


def first_alone(value: Fraction) -> Callable[[int], Fraction]:
    """A value at the first element, 1 at the others."""
    return lambda i: Fraction(1) if i else value


def ends(parameter: Parameter) -> tuple[Fraction | None, Fraction | None]:
    """The ends of a parameter's range; None for an infinite one."""
    low = None if parameter.lower in (None, -math.inf) else Fraction(str(parameter.lower))
    high = None if parameter.upper in (None, math.inf) else Fraction(str(parameter.upper))
    return low, high


def parameter_values(parameter: Parameter) -> list[Fraction]:
    """Values to try: the defaults, then some spread over the allowed interval."""
    low, high = ends(parameter)
    defaults = [Fraction(str(v)) for _, v in parameter.default_items()]
    if low is not None and high is not None:
        spread = [low + (high - low) * t for t in (Fraction(1, 2), Fraction(1, 100), Fraction(99, 100))]
    elif low is not None:
        spread = [low + t for t in (Fraction(1), Fraction(1, 100), Fraction(10), Fraction(3, 4))]
    elif high is not None:
        spread = [high - t for t in (Fraction(1), Fraction(1, 100), Fraction(10))]
    else:
        spread = [Fraction(1), Fraction(-1), Fraction(1, 100)]
    if (low is None or low < 0) and (high is None or high > 0):
        spread.append(Fraction(0))
    return list(dict.fromkeys([*defaults, *spread]))
