"""Who lies over whom in a recorded batch, token by token, and how far that has drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fibration.recorded import Gated

Vector = NDArray[np.float64]


def under(gated: Gated, stratum: str) -> NDArray[np.int64]:
    """The element of a stratum that every unmasked token lies over, -1 where there is none: `[tokens]`."""
    index = gated.index
    found = np.full(len(index.positions), -1, np.int64)
    for leaf in index.leaves_over(stratum):
        tokens = index.tokens_of(leaf)
        found[slice(None) if tokens is None else tokens.numpy()] = index.parent(leaf, stratum).numpy()
    return found


def drift(gated: Gated, stratum: str) -> Vector:
    """The mean drift of the element under every token: what it and all that is coarser add. NaN where there is none."""
    h = gated.op.hierarchy
    here = next(s for s in h.order if s.name == stratum)
    total = np.where(under(gated, stratum) >= 0, 0.0, np.nan)
    for s in (here, *h.coarser(here)):
        total += net(gated, s.name)[under(gated, s.name)]
    return total


def net(gated: Gated, stratum: str) -> Vector:
    """What every element drifts beyond what it lies over, up less down."""
    parts = gated.levels.residual
    sign = {"": 1.0, "+": 1.0, "-": -1.0}
    return sum(sign[c] * parts[stratum, c].numpy() for c in gated.op.hierarchy.decomposition.channels)  # type: ignore[return-value]
