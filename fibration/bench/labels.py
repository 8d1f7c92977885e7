"""Labels of a benchmark's batch, for any chain, tree or quiver."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy

SAMPLES = 8  # trajectories per prompt
ROOTS = 4  # elements of a coarsest stratum
IMAGES = 0.3  # share of a trajectory's tokens in the second leaf, if there are two
CROSSING = 3  # elements of a second stratum over the rows

Codes = NDArray[np.int64]


def row_labels(hierarchy: Hierarchy, rows: int) -> dict[str, Codes]:
    """Labels per row for every stratum coarser than the rows, and for groups.

    - Neighbouring trajectories share a prompt, and prompts are dealt out to domains.
    - Strata that cross over the rows are dealt out at different paces: all their cells have rows, and no cell in
      proportion.
    - A stratum with several finer strata has one element.
    """
    shape = hierarchy.shape
    prompts = {s.name: np.arange(rows) // SAMPLES for s in hierarchy.groups}
    if hierarchy.rows not in hierarchy.strata:
        return prompts
    above = [s for s in reversed(hierarchy.order) if s in hierarchy.coarser(hierarchy.rows) and s.name != BATCH]
    first = [s for s in above if any(f.source == hierarchy.rows for f in shape.above(s))]
    labels: dict[str, Codes] = {}
    for s in above:
        sources = [f.source for f in shape.above(s) if f.source == hierarchy.rows or f.source.name in labels]
        if len(sources) > 1:
            labels[s.name] = np.zeros(rows, np.int64)
        elif s in first:
            labels[s.name] = _dealt(hierarchy, s, rows, first.index(s), len(first))
        else:
            further = [c for c in hierarchy.coarser(s) if c.name != BATCH]
            labels[s.name] = labels[sources[0].name] % ROOTS ** (1 + len(further))
    return labels | prompts


def _dealt(hierarchy: Hierarchy, stratum: Stratum, rows: int, place: int, of: int) -> Codes:
    number = np.arange(rows)
    if of == 1:
        return number // SAMPLES
    if place == 0:
        return number // SAMPLES % ROOTS
    return (number * number + place - 1) % 7 % CROSSING  # squares modulo 7: every cell soon, none in proportion


def fine_labels(
    hierarchy: Hierarchy, row: Codes, lengths: Codes, generator: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Labels per token for the strata that are not rows or coarser than rows.

    - A stratum between tokens and rows cuts each row into equal pieces, and each finer one into twice as many.
    - A stratum that crosses the rows, such as experts, has random labels.
    - Several leaves have masks.
    """
    coarse = {hierarchy.rows, *hierarchy.coarser(hierarchy.rows)} if hierarchy.rows in hierarchy.strata else set()
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found: dict[str, NDArray[Any]] = {}
    between = 0
    for s in hierarchy.order:
        if s in coarse or s in hierarchy.leaves or s.name == BATCH:
            continue
        if hierarchy.rows in hierarchy.coarser(s):
            parts = 4 * 2**between
            between += 1
            found[s.name] = row * parts + place * parts // lengths[row]
        else:
            found[s.name] = generator.integers(0, 2 * ROOTS, len(row))
    if len(hierarchy.leaves) > 1:
        share = place / lengths[row]
        bounds = np.concatenate([[0.0], np.linspace(IMAGES, 1.0, len(hierarchy.leaves))])
        for leaf, low, high in zip(reversed(hierarchy.leaves), bounds, bounds[1:], strict=False):
            found[leaf.name] = (share >= low) & (share < high)
    return found
