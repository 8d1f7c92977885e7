"""Per token of a recorded batch: its elements, its part of the rollouts, and its drift. All pictures use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fibration.plotting.canvas import INK, PALETTE, Vector
from fibration.printing.text import shortened
from fibration.rollouts.replay import Gated


@dataclass(frozen=True)
class Colours:
    """One colour per part of the rollouts, for the elements of every stratum; grey for elements of several parts."""

    names: tuple[str, ...]
    of: dict[str, NDArray[np.int64]]  # per stratum, the part of each element; `len(names)` means several parts
    tokens: NDArray[np.int64]  # the part of every unmasked token

    def colour(self, i: int) -> str:
        return PALETTE[i % len(PALETTE)] if i < len(self.names) else INK

    def leading(self, most: int = 6) -> list[tuple[tuple[int, ...], str, str]]:
        """Groups of parts: numbers, name and colour. Of many parts, the largest ones and one group of all others."""
        every = range(len(self.names))
        if len(every) <= most + 1:
            return [((i,), self.names[i], self.colour(i)) for i in every]
        counts = np.bincount(self.tokens, minlength=len(every))
        shown = sorted(np.argsort(-counts, kind="stable")[:most].tolist())
        others = tuple(i for i in every if i not in shown)
        alone = [((i,), self.names[i], PALETTE[k]) for k, i in enumerate(shown)]  # colours that differ
        return [*alone, (others, f"{len(others)} others", INK)]

    def rows(self, stratum: str) -> tuple[str, ...]:
        """Names of the parts, and `several` if an element of the stratum belongs to several parts."""
        return (*self.names, *(["several"] if (self.of[stratum] == len(self.names)).any() else []))


def colours(gated: Gated) -> Colours:
    index, names = gated.index, gated.parts.names or ("all",)
    tokens = gated.parts.of_token[index.positions.numpy()]
    of = {}
    for stratum in gated.op.hierarchy.order:
        parent = under(gated, stratum.name)
        mine, size = parent >= 0, index.size[stratum.name]
        found = np.zeros(size, np.int64)
        found[parent[mine]] = tokens[mine]
        several = np.zeros(size, bool)
        several[parent[mine][found[parent[mine]] != tokens[mine]]] = True
        of[stratum.name] = np.where(several, len(names), found)
    short = (shortened(name, 16).replace("$", r"\$") for name in names)  # a $ would start mathematics
    return Colours(tuple(short), of, tokens)


def under(gated: Gated, stratum: str) -> NDArray[np.int64]:
    """The element of a stratum that every unmasked token lies over, or -1 without one: `[tokens]`."""
    index = gated.index
    found = np.full(len(index.positions), -1, np.int64)
    for leaf in index.leaves_over(stratum):
        tokens = index.tokens_of(leaf)
        found[slice(None) if tokens is None else tokens.numpy()] = index.parent(leaf, stratum).numpy()
    return found


def drift(gated: Gated, stratum: str) -> Vector:
    """The mean drift of the element under every token, coarser strata included. NaN for a token without one."""
    h = gated.op.hierarchy
    here = next(s for s in h.order if s.name == stratum)
    total = np.where(under(gated, stratum) >= 0, 0.0, np.nan)
    for s in (here, *h.coarser(here)):
        total += net(gated, s.name)[under(gated, s.name)]
    return total


def net(gated: Gated, stratum: str) -> Vector:
    """The residual drift of every element, channel + less channel −."""
    parts = gated.levels.residual
    sign = {"": 1.0, "+": 1.0, "-": -1.0}
    return sum(sign[c] * parts[stratum, c].numpy() for c in gated.op.hierarchy.decomposition.channels)  # type: ignore[return-value]
