"""Products of counts: what a loss divides by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fibration.auditing.batch import Floats

Powers = Mapping[str, Any]
Weight = tuple[Powers, str, float]  # powers of counts, and what is added to one of them
# What may be counted: of the batch; and of a row: of its tokens, of its prompt group's tokens, and of that one's rows.
WIDTH = "width of the padded batch"
OF_BATCH = {"rows": "rows", "batch": "tokens", "width": WIDTH, "groups": "prompt groups"}
OF_ROW = {"row": "the row's tokens", "group": "the group's tokens", "rows of the group": "the group's rows"}
COUNTS = OF_BATCH | OF_ROW  # in words
SUM = "the sum over all tokens"
NORMALISERS: dict[str, Powers] = {
    "the mean over all tokens": {"batch": -1},
    "the mean over rows of each row's mean": {"row": -1, "rows": -1},
    "the sum of each row, averaged over rows": {"rows": -1},
    SUM: {},
    "each row's mean, summed": {"row": -1},
    f"{SUM} ÷ all places of the padded batch, rows × width": {"rows": -1, "width": -1},
    f"{SUM} ÷ the width of the padded batch": {"width": -1},
    "the mean over prompt groups of the mean over their tokens": {"group": -1, "groups": -1},
    "the mean over prompt groups of the mean over their rows of each row's mean": {
        "row": -1, "rows of the group": -1, "groups": -1,
    },
}  # fmt: skip


def products(names: Iterable[str], most: int) -> list[Powers]:
    """Products of up to so many counts and inverses of counts, those of few first."""
    names = list(names)
    some = (c for k in range(most + 1) for c in itertools.combinations(names, k))
    return [dict(zip(c, p, strict=True)) for c in some for p in itertools.product((-1, 1), repeat=len(c))]


def value_of(weight: Weight, counts: Mapping[str, Any]) -> Any:
    powers, name, epsilon = weight
    return math.prod((counts[n] + (epsilon if n == name else 0)) ** float(p) for n, p in powers.items())


def multiples(
    values: Floats, counts: Mapping[str, Floats], weights: Iterable[Weight], close: float
) -> Iterator[tuple[float, Weight]]:
    """The products of counts that numbers are one multiple of, and by what."""
    for weight in weights:
        with np.errstate(all="ignore"):  # a count less 1 may be 0
            each = values / value_of(weight, counts)
        if np.isfinite(each).all() and np.ptp(each) <= close * abs(each[0]):
            yield float(each[0]), weight
