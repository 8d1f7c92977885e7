"""Counterexamples in words: numbers, elements, batches, and the `Witness` that a search returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import mpmath

from fibration.language.atoms import BATCH, Stratum
from fibration.language.exact import FIFTY_DIGITS
from fibration.language.expressions import LARGEST, SMALLEST
from fibration.language.hierarchy import Hierarchy

if TYPE_CHECKING:
    from fibration.laws.batches.concrete import Concrete

MOST_DIGITS = 10**20  # the largest numerator or denominator that a rounded result may have and count as exact
MOST_WRITTEN = 2**12  # bits: Python refuses to write more than 4300 digits


def plural(name: str) -> str:
    """`trajectories` for `trajectory`."""
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


def number(n: int, stratum: Stratum) -> str:
    """`1 trajectory`, `2 trajectories`."""
    return f"{n} {stratum.name if n == 1 else plural(stratum.name)}"


def lies(concrete: Concrete, stratum: Stratum) -> str:
    """`trajectories 1 to 3 lie over domains 1, 1, 2 and modalities 1, 2, 1`; '' for one, or for many."""
    n = concrete.size[stratum]
    if not 1 < n <= 8:
        return ""
    over = [
        f"{plural(f.target.name)} {', '.join(str(b + 1) for b in concrete.maps[stratum, f.target])}"
        for f in concrete.shape.below(stratum)
    ]
    return f"{plural(stratum.name)} 1 to {n} lie over {' and '.join(over)}"


def shown(value: Fraction) -> str:
    """Six digits of a number, of any size."""
    if _is_ordinary(value):
        return f"{float(value):.6g}"
    return str(mpmath.nstr(mpmath.mpf(value.numerator) / value.denominator, 6))


class Rounded(Fraction):
    """A number known to fifty digits, since its formula has an exponential, a logarithm or a root."""


def rounded(value: Fraction, tolerance: Fraction) -> Fraction:
    """A result that may be off by `tolerance`: `Rounded`, unless it is a fraction of few digits."""
    return Rounded(value) if tolerance and max(abs(value.numerator), value.denominator) > MOST_DIGITS else value


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


def written(value: object) -> Any:
    """A value for JSON: rational numbers as exact `"p/q"`; `Rounded` and very large ones with fifty digits."""
    if isinstance(value, (tuple, list)):
        return [written(v) for v in value]
    if isinstance(value, Fraction):
        return _decimal(value) if isinstance(value, Rounded) or _size(value) > MOST_WRITTEN else str(value)
    return value if value is None or isinstance(value, int) else str(value)


def _decimal(value: Fraction) -> str:
    with localcontext(prec=FIFTY_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN):
        return str(Decimal(value.numerator) / value.denominator)


def _is_ordinary(value: Fraction) -> bool:
    return value == 0 or (SMALLEST < abs(value) < LARGEST and _size(value) <= MOST_WRITTEN)


def _size(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def in_batch(h: Hierarchy, concrete: Concrete) -> str:
    """`in a trajectory of 3 tokens`; of several rows, `in a batch of 2 trajectories with 1 and 2 tokens`."""
    return f"in {concrete.describe(h.rows if concrete.size[h.rows] == 1 else Stratum(BATCH))}"


def settings(concrete: Concrete) -> str:
    """The values of parameters and attributes, in parentheses."""
    parts = [f"{p} = {v}" for p, v in concrete.parameters.items()]
    parts += [f"{a.name} = {', '.join(map(str, v[:6]))}" for a, v in concrete.attributes.items()]
    return f" ({'; '.join(parts)})" if parts else ""


@dataclass(frozen=True)
class Witness:
    """A counterexample: a sentence, and everything needed to check it without this library.

    `has_no_value`: a formula has no value there, where others have a wrong one.
    """

    text: str
    concrete: Concrete | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    has_no_value: bool = False

    @classmethod
    def on(cls, concrete: Concrete, text: str, values: Mapping[str, Any]) -> Witness:
        """A witness whose sentence ends with the values of parameters and attributes."""
        return cls(text + settings(concrete), concrete, values)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        hierarchy = {} if self.concrete is None else {"hierarchy": self.concrete.to_dict()}
        return {"text": self.text, **hierarchy, "values": {k: written(v) for k, v in self.values.items()}}
