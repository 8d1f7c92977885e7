"""Micro-batches: some rows of a step, with the counts and normalisers of the whole step."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fibration.errors import BatchError, HierarchyIndexError, an, located, shown
from fibration.language.atoms import BATCH, Attribute
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.build import Builder
from fibration.runtime.index.index import Index, once
from fibration.runtime.index.labels import Encoded, Names, TokenPlaces, renumbered, to_numpy
from fibration.runtime.index.spans import spread_out
from fibration.runtime.sums import Codes


@dataclass(eq=False, kw_only=True)
class MicroIndex(Index):
    """The index of a micro-batch. Its elements are those of its rows; numbers about them are those of the whole step.

    `rows`: the rows of the whole step, in the order of this micro-batch. `elements`: per stratum, the number in the
    whole step of each element: int64 [elements].
    """

    whole: Index
    rows: Codes
    elements: Mapping[str, Codes]

    @property
    def gradient_scale(self) -> int:
        return self.whole.gradient_scale

    @property
    def shares(self) -> int:
        return 1

    @property
    def tokens_of_step(self) -> int:
        return self.whole.tokens_of_step

    @once
    def count(self, of: str, over: str) -> Tensor:
        return self.taken(self.whole.count(of, over), over)

    @once
    def total(self, attribute: Attribute, over: str) -> Tensor:
        return self.taken(self.whole.total(attribute, over), over)

    @once
    def matrix(self, into: str, of: str) -> Tensor:
        return self.whole.matrix(into, of)[self._numbers(into)][:, self._numbers(of)].contiguous()

    def taken(self, vector: Tensor, stratum: str) -> Tensor:
        """A vector over the whole step, `[elements]` or `[1]` for all of them, at the elements of this micro-batch."""
        numbers = self._numbers(stratum)
        if vector.numel() and (len(vector) == 1 or vector.stride(0) == 0):
            return vector[:1].expand(len(numbers))
        return vector[numbers]

    @once
    def _numbers(self, stratum: str) -> Tensor:
        return torch.from_numpy(self.elements[stratum]).to(self.device)

    def micro(self, rows: Any) -> Index:
        """Some rows of this micro-batch, as a micro-batch of the whole step."""
        return micro_index(self.whole, self.rows[_chosen(rows, self.n_rows)])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; a micro-batch of {self.whole!r})"


def micro_index(whole: Index, rows: Any) -> MicroIndex:
    """See `Index.micro`."""
    h = whole.hierarchy
    with located(f"index of '{h.name}'"):
        chosen = _chosen(rows, whole.n_rows)
        number = np.full(whole.n_rows, -1)
        number[whole.row_numbers] = np.arange(len(whole.row_numbers))
        filled = number[chosen] >= 0
        mine = number[chosen][filled]  # of the rows with tokens, their numbers in the whole
        sizes = whole.every.sizes[mine]
        tokens = spread_out(whole.every.before[mine], sizes)
        bounds = np.concatenate([[0], np.cumsum(np.diff(whole.bounds)[chosen])])
        moved = (bounds[:-1] - whole.bounds[chosen])[filled]
        keep = np.zeros(bounds[-1], np.bool_)
        keep[whole.every.runs.place(tokens) + np.repeat(moved, sizes)] = True
        if len(whole.shape) == 2:
            builder = Builder(h, keep.reshape(len(chosen), whole.shape[1]), None, whole.device, spread=True)
        else:
            builder = Builder(h, keep, bounds, whole.device, spread=True)
        of = {leaf: np.zeros(len(whole.every), np.bool_) for leaf in whole.numbers}
        for leaf, numbers in whole.numbers.items():
            of[leaf][numbers.places()] = True
        places = builder.places({leaf: is_of[tokens] for leaf, is_of in of.items()})
        encoded, elements, named = _taken(whole, places, mine, tokens)
        elements |= {leaf: (np.cumsum(is_of) - 1)[tokens[is_of[tokens]]] for leaf, is_of in of.items()}
        elements |= {} if of else {whole.leaves[0]: tokens}
        values = {a.name: whole.values[a.name].cpu().numpy()[elements[a.on.name]] for a in h.attributes.values()}
        positions = None if whole.given_positions is None else whole.given_positions[tokens]
        found = builder.assemble(encoded, values, whole.device, positions, named)
        _check_closed(found, whole, elements)
    own = {f.name: getattr(found, f.name) for f in fields(Index) if f.name != "_cache"}
    return MicroIndex(**own | {"coupling": whole.coupling}, whole=whole, rows=chosen, elements=elements)


Index._micro = micro_index  # type: ignore[assignment]  # what `index.micro(rows)` calls


def _chosen(rows: Any, n_rows: int) -> Codes:
    """The row numbers, in the given order."""
    if isinstance(rows, slice):
        return _sliced(rows, n_rows)
    rule = f"a slice, or a list, an array or a tensor of row numbers below {n_rows}, or of [{n_rows}] booleans"
    if not isinstance(rows, (list, range, np.ndarray, Tensor)):
        remedy = f"index.micro([{rows}]) for one row" if isinstance(rows, int) else ""
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
    result = found.astype(np.int64) % n_rows
    numbers, times = np.unique(result, return_counts=True)
    if (times > 1).any():
        row = numbers[np.argmax(times > 1)]
        raise HierarchyIndexError(f"row {row} comes {times.max()} times", required="each row in one micro-batch, once")
    return result


def _sliced(rows: slice, n_rows: int) -> Codes:
    """The row numbers of a slice. The last one of a loop may end beyond the rows, as slices of tensors may."""
    rule = f"a slice that begins in the {n_rows} rows and chooses some, or slice(a, a) for none"
    try:
        found = np.arange(n_rows)[rows]
        start, stop = (None if end is None else operator.index(end) for end in (rows.start, rows.stop))
    except (TypeError, ValueError) as error:
        raise HierarchyIndexError(f"rows are {shown(rows)}: {error}", required=rule) from None
    begin, end = (end + n_rows if end is not None and end < 0 else end for end in (start, stop))
    outside = begin is not None and not 0 <= begin <= n_rows
    if outside or (not len(found) and n_rows and (begin or 0) != (n_rows if end is None else end)):
        raise HierarchyIndexError(f"rows are {shown(rows)}, and the index has {n_rows}", required=rule)
    return found


def _taken(whole: Index, places: TokenPlaces, rows: Codes, tokens: Codes) -> tuple[Encoded, dict[str, Codes], bool]:
    """The labels of some non-empty rows and of their tokens, the numbers of their elements in the whole step, and
    whether the rows keep their names. Pieces of one row are rows without names.
    """
    name = whole.hierarchy.rows.name
    number = np.empty(len(whole.row_numbers), np.int64)
    for below, at in whole.over_rows(name):
        number[at.cpu().numpy()] = below.cpu().numpy()
    own = number[rows]
    named = whole.has_row_names and len(np.unique(own)) == len(own)
    per_row: dict[str, Codes] = {name: np.arange(len(rows))}
    per_token: dict[str, Codes] = {}
    names: dict[str, Names] = dict.fromkeys([*whole.labels, name], tuple(places.row_numbers.tolist()))
    if named:
        names[name] = tuple(whole.labels[name][i] for i in own)
    elements = {name: own, BATCH: np.zeros(1, np.int64)}
    for stratum, labels in whole.labels.items():
        if stratum != name:
            codes, by_row = _codes(whole, stratum)
            found, elements[stratum] = renumbered(codes[rows if by_row else tokens])
            (per_row if by_row else per_token)[stratum] = found
            names[stratum] = tuple(labels[i] for i in elements[stratum])
    return Encoded(places, per_row, per_token, names, {}), elements, named


def _codes(whole: Index, stratum: str) -> tuple[Codes, bool]:
    """The element under every non-empty row, and True; or under every token, and False. -1 if there is none."""
    leaves = whole.leaves_over(stratum)
    by_row = all(whole.of_rows(leaf, stratum) is not None for leaf in leaves)
    codes = np.full(len(whole.row_numbers) if by_row else len(whole.every), -1)
    for leaf in leaves:
        of_rows = whole.of_rows(leaf, stratum) if by_row else None
        if of_rows is not None:
            codes[whole.spans[leaf].rows] = of_rows.cpu().numpy()
        else:
            codes[whole.token_numbers(leaf)] = whole.parent(leaf, stratum).cpu().numpy()
    return codes, by_row


def closed_sets(whole: Index, parts: Sequence[Any]) -> Codes | None:
    """Per micro-batch, the first one of its set: the smallest set whose rows together are a micro-batch. int64 [parts]

    `parts`: the rows of every micro-batch, as in `index.micro`. Two micro-batches are in one set if they share an
    element over which the loss couples rows. None if such an element has tokens on another rank, or in no micro-batch.
    """
    of_rows = np.full(whole.n_rows, -1)
    for number, rows in enumerate(parts):
        of_rows[_chosen(rows, whole.n_rows)] = number
    of_tokens = np.repeat(of_rows[whole.row_numbers], whole.every.sizes)
    joined: list[tuple[Codes, Codes, int]] = []  # micro-batches, and an element of each; the number of elements
    for stratum in whole.coupling.strata:
        size, found = 1 if stratum == BATCH else whole.size[stratum], [np.empty(0, np.int64)]
        for leaf in whole.leaves_over(stratum):
            part, element = of_tokens[whole.token_numbers(leaf)], whole.parent(leaf, stratum).cpu().numpy()
            part, element = part[part >= 0], element[part >= 0]
            here = np.bincount(element, minlength=size)
            if ((here != whole.count(leaf, stratum).cpu().numpy()) & (here > 0)).any():
                return None
            found.append(np.unique(part * size + element))
        joined.append((*np.divmod(np.concatenate(found), size), size))
    first = np.arange(len(parts))
    while True:
        before = first.copy()
        for part, element, size in joined:
            least = np.full(size, len(parts))
            np.minimum.at(least, element, first[part])
            np.minimum.at(first, part, least[element])
        if (first == before).all():
            return first


def _check_closed(found: Index, whole: Index, elements: Mapping[str, Codes]) -> None:
    """Refuses an element with tokens here and elsewhere, of a stratum over which the loss couples tokens."""
    h, coupling = whole.hierarchy, whole.coupling
    within = coupling.within if whole.ranks is not None else ()  # else rows are whole, and what lies over them
    for stratum in (*coupling.strata, *within):
        for leaf in whole.leaves_over(stratum):
            here = found.count(leaf, stratum).cpu().numpy()
            every = whole.count(leaf, stratum).cpu().numpy()[elements[stratum]]
            for i in np.flatnonzero((here != every) & (here > 0))[:1]:
                part = "rows" if stratum in coupling.strata else "tokens"
                where = "batch" if stratum == BATCH else stratum
                first = f"put every {where} into one micro-batch whole; or " if where != "batch" else ""
                raise HierarchyIndexError(
                    f"a micro-batch has {here[i]:.0f} of the {every[i]:.0f} {leaf}s of "
                    f"{whole.describe_element(stratum, int(elements[stratum][i]))}",
                    required=f"all of them: '{h.name}' couples the {part} of a {where}",
                    remedy=f"{first}compute op.coefficients(...) of the whole step once, and slice its values",
                )


def coupled_rows(index: Index, rows: Tensor) -> Tensor:
    """The rows whose log-probs the coefficients of `rows` read, themselves included: bool `[B]`.

    `rows`: bool `[B]`. On this rank alone: an element over which the loss couples rows must not have tokens elsewhere.
    """
    found = rows.clone()
    places = [(leaf, stratum) for stratum in index.coupling.strata for leaf in index.leaves_over(stratum)]
    of_tokens = {leaf: index.row_tensor()[index.rows_of_tokens(leaf)] for leaf, _ in places}
    while True:
        before = found.clone()
        for leaf, stratum in places:
            parent = index.parent(leaf, stratum)
            size = 1 if stratum == BATCH else index.size[stratum]
            reached = torch.zeros(size, dtype=torch.int64, device=index.device)
            reached.index_add_(0, parent, found[of_tokens[leaf]].long())
            found[of_tokens[leaf][reached[parent] > 0]] = True
        if torch.equal(found, before):
            return found


# What needs a whole step, and what to do instead; all other calls take the index of the whole step.
INSTEAD = {
    "metrics": "at the end of the step, op.coefficients(...) with the log-probs of all rows and the step's index",
    "rewards": "advantages = op.advantages(rewards, index) of the whole step, then advantages[rows]",
    "live rows": "live = op.live(advantages, index) of the whole step, then live[rows]: advantages elsewhere may "
    "decide",
}


def of_whole_step(h: Hierarchy, what: str) -> BatchError:
    return BatchError(
        f"{what} of a micro-batch of '{h.name}'",
        required="the whole step: an element may have tokens in several micro-batches",
        remedy=INSTEAD.get(what, "call it with the index of the whole step"),
    )
