"""`index[rows]`: some rows of a batch as a batch of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fibration.errors import HierarchyIndexError, an, located, shown
from fibration.language.atoms import BATCH
from fibration.runtime.batch import Codes
from fibration.runtime.index.attributes import to_numpy
from fibration.runtime.index.build import Builder, finished
from fibration.runtime.index.index import Index
from fibration.runtime.index.labels import Encoded, Names, Places
from fibration.runtime.index.numbering import renumbered
from fibration.runtime.index.positions import check_order
from fibration.runtime.index.spans import spread_out


def part(index: Index, rows: Any) -> Index:
    """See `Index.__getitem__`."""
    h = index.hierarchy
    with located(f"index of '{h.name}'"):
        if index.ranks is not None:
            raise HierarchyIndexError(
                "a distributed index, or one whose rows come in pieces, cannot be sliced",
                required="an index of one process, whose coarser elements are those of the chosen rows",
                remedy="build an index of those rows: op.index(...)",
            )
        chosen = _chosen(rows, index.n_rows)
        number = np.full(index.n_rows, -1)
        number[index.row_numbers] = np.arange(len(index.row_numbers))
        filled = number[chosen] >= 0
        mine = number[chosen][filled]  # of chosen rows with tokens, their numbers in the whole
        sizes = index.every.sizes[mine]
        tokens = spread_out(index.every.before[mine], sizes)
        bounds = np.concatenate([[0], np.cumsum(np.diff(index.bounds)[chosen])])
        moved = (bounds[:-1] - index.bounds[chosen])[filled]
        keep = np.zeros(bounds[-1], np.bool_)
        keep[index.every.runs.place(tokens) + np.repeat(moved, sizes)] = True
        if len(index.shape) == 2:
            builder = Builder(h, keep.reshape(len(chosen), index.shape[1]), None, index.device)
        else:
            builder = Builder(h, keep, bounds, index.device)
        of = {leaf: _marked(numbers.places(), len(index.every)) for leaf, numbers in index.numbers.items()}
        places = builder.places({leaf: is_of[tokens] for leaf, is_of in of.items()})
        encoded, elements = _taken(index, places, mine, tokens)
        elements |= {leaf: (np.cumsum(is_of) - 1)[tokens[is_of[tokens]]] for leaf, is_of in of.items()}
        elements |= {} if of else {index.leaves[0]: tokens}
        values = {a.name: index.values[a.name].cpu().numpy()[elements[a.on.name]] for a in h.attributes.values()}
        positions = None if index.given_positions is None else index.given_positions[tokens]
        found = builder.assemble(encoded, values, index.device, positions, index.has_row_names)
        check_order(found)
    return finished(found)


Index._part = part  # type: ignore[assignment]  # what `index[rows]` calls


def _chosen(rows: Any, n_rows: int) -> Codes:
    """The row numbers, in the given order."""
    if isinstance(rows, slice):
        return np.arange(n_rows)[rows]
    rule = f"a slice, or a list, an array or a tensor of row numbers below {n_rows}, or of [{n_rows}] booleans"
    if not isinstance(rows, (list, range, np.ndarray, Tensor)):
        remedy = f"index[{rows}:{rows + 1}] for one row" if isinstance(rows, int) else ""
        raise HierarchyIndexError(f"rows are {an(type(rows).__name__)}: {shown(rows)}", required=rule, remedy=remedy)
    found = to_numpy(rows, "the rows")
    found = found.astype(np.int64) if not found.size else found
    if found.ndim != 1 or found.dtype.kind not in "iub":
        raise HierarchyIndexError(f"rows of shape {list(found.shape)} and dtype {found.dtype}", required=rule)
    if found.dtype == np.bool_:
        if len(found) != n_rows:
            raise HierarchyIndexError(f"{len(found)} booleans choose rows", required=rule)
        return np.flatnonzero(found)
    outside = (found < -n_rows) | (found >= n_rows)
    if outside.any():
        raise HierarchyIndexError(f"row {found[np.argmax(outside)]} does not exist", required=rule)
    return found.astype(np.int64) % n_rows


def _marked(places: Codes, size: int) -> NDArray[np.bool_]:
    found = np.zeros(size, np.bool_)
    found[places] = True
    return found


def _taken(index: Index, places: Places, rows: Codes, tokens: Codes) -> tuple[Encoded, dict[str, Codes]]:
    """The labels of some non-empty rows and of their tokens; and by stratum, the old numbers of the remaining
    elements.
    """
    name = index.hierarchy.rows.name
    per_row: dict[str, Codes] = {name: np.arange(len(rows))}
    per_token: dict[str, Codes] = {}
    names: dict[str, Names] = dict.fromkeys([*index.labels, name], tuple(places.row_numbers.tolist()))
    if index.has_row_names:
        names[name] = tuple(index.labels[name][i] for i in rows)
        again = np.setdiff1d(np.arange(len(rows)), np.unique(rows, return_index=True)[1])
        if len(again):
            raise HierarchyIndexError(f"row {names[name][again[0]]!r} is chosen twice", required="each named row once")
    elements = {name: rows, BATCH: np.zeros(1, np.int64)}
    for stratum, labels in index.labels.items():
        if stratum != name:
            codes, by_row = _codes(index, stratum)
            found, elements[stratum] = renumbered(codes[rows if by_row else tokens])
            (per_row if by_row else per_token)[stratum] = found
            names[stratum] = tuple(labels[i] for i in elements[stratum])
    return Encoded(places, per_row, per_token, names, {}), elements


def _codes(index: Index, stratum: str) -> tuple[Codes, bool]:
    """The element under every non-empty row, and True; or under every token, and False. -1 if there is none."""
    leaves = index.leaves_over(stratum)
    of_rows: Mapping[str, Tensor | None] = {leaf: index.of_rows(leaf, stratum) for leaf in leaves}
    by_row = all(found is not None for found in of_rows.values())
    codes = np.full(len(index.row_numbers) if by_row else len(index.every), -1)
    for leaf, found in of_rows.items():
        if by_row and found is not None:
            codes[index.spans[leaf].rows] = found.cpu().numpy()
        else:
            of = index.tokens_of(leaf)
            at = slice(None) if of is None else of.cpu().numpy()
            codes[at] = index.parent(leaf, stratum).cpu().numpy()
    return codes, by_row
