"""Masks, offsets and labels → an index. Errors name the row, label or element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.errors import HierarchyIndexError, an, listed, shown, suggest
from fibration.language import keywords
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.statistics import Ordered
from fibration.runtime.devices import usable
from fibration.runtime.index.assumed import alone_with_rewards, check
from fibration.runtime.index.index import LAST, Index
from fibration.runtime.index.labels import Encoded, Encoder, TokenPlaces, attribute_values, to_numpy
from fibration.runtime.index.projection import Projection
from fibration.runtime.index.spans import Intervals, Spans, place_of
from fibration.runtime.ranks.group import is_group
from fibration.runtime.ranks.shards import position_ranges
from fibration.runtime.sums import Codes, steps

IGNORED = -100  # the label that losses of token ids ignore


def finished(index: Index) -> Index:
    """The index after its assumptions are checked, with its projection."""
    check(index)
    index.refuses_rewards = alone_with_rewards(index)
    if index.hierarchy.orthogonalise and index.hierarchy.shape.crossed():
        index.projection = Projection(index)  # refuses a singular system now, not in the first call
    return index


class Builder:
    """Builds the index of one process. `spread`: the batch is over ranks, and this rank's part may be empty."""

    def __init__(
        self, hierarchy: Hierarchy, mask: Any, offsets: Any, device: torch.device | str | None, spread: bool = False
    ) -> None:
        self.h, self.spread = hierarchy, spread
        self.leaves = [s.name for s in hierarchy.leaves]
        self.rows = hierarchy.rows.name
        if mask is None and offsets is None:
            raise HierarchyIndexError("neither mask nor offsets", required=WAYS)
        given = mask if mask is not None else offsets
        here = given.device if isinstance(given, Tensor) else "cpu"
        self.device = usable(here if device is None else device)
        keep = None if mask is None else as_mask(mask, "the mask")
        if offsets is None:
            assert keep is not None
            self.shape: tuple[int, ...] = tuple(keep.shape)
            if keep.ndim != 2:
                raise HierarchyIndexError(
                    f"the mask has shape {list(keep.shape)}",
                    required="[B, T], or a packed [N] together with offsets",
                    remedy="mask.squeeze(-1)" if keep.shape[2:] == (1,) else "",
                )
            self.n_rows = self.shape[0]
            self.bounds = np.arange(self.n_rows + 1) * self.shape[1]
        else:
            self.bounds = as_offsets(offsets, 1 - spread)
            self.shape, self.n_rows = (int(self.bounds[-1]),), len(self.bounds) - 1
            if keep is not None and keep.shape != self.shape:
                raise HierarchyIndexError(
                    f"the mask has shape {list(keep.shape)}",
                    required=f"{list(self.shape)}, the length in the offsets",
                    remedy="leave offsets out for padded tensors, [B, T]" if keep.ndim == 2 else "",
                )
        self.keep = None if keep is None else keep.reshape(-1)
        runs = _every_place(self.shape[0]) if self.keep is None else Intervals.of(self.keep)
        if not len(runs) and not spread:
            raise HierarchyIndexError(
                "the batch is empty",
                required="at least one unmasked token",
                found=f"shape {list(self.shape)}, nothing unmasked",
                remedy="skip the update for this batch",
            )
        before = runs.before_places(self.bounds)
        self.row_numbers = steps(before).nonzero()[0]
        self.every = Spans.of(runs, np.concatenate([before[self.row_numbers], before[-1:]]))

    # ------------------------------------------------------------ assembly

    def build(
        self,
        labels: Mapping[str, Any],
        attributes: Mapping[str, Any] | None,
        device: torch.device,
        positions: Any = None,
    ) -> Index:
        attributes = {} if attributes is None else attributes
        if not isinstance(attributes, Mapping):
            raise HierarchyIndexError(
                f"attributes={shown(attributes)}",
                required="a mapping from the names of attributes to their values",
                found=f"the attributes of the hierarchy: {', '.join(self.h.attributes) or 'none'}",
            )
        wanted = self._wanted(labels)
        places = self.places(self._is_of(labels))
        wished, named = {name: labels[name] for name in wanted}, labels.get(self.rows) is not None
        self.encoded = Encoder(places, self.spread).encode(wished, labels.get(self.rows))
        values: dict[str, NDArray[np.float64]] = {}
        if self.h.attributes:
            size = self._sizes(self.encoded)
            values = {
                a.name: attribute_values(a, attributes, self.encoded, size[a.on.name], self.spread, named)
                for a in self.h.attributes.values()
            }
        for name in attributes:
            if name not in values:
                raise HierarchyIndexError(
                    f"unknown attribute '{name}'", required=f"one of {', '.join(values) or 'none'}"
                )
        given = read_positions(positions, self.shape, self.every, self.keep, self._token)
        return self.assemble(self.encoded, values, device, given, named)

    def _sizes(self, encoded: Encoded) -> dict[str, int]:
        size = {leaf: len(encoded.places.spans[leaf]) for leaf in self.leaves}
        return (
            size
            | {self.rows: len(encoded.names[self.rows]), BATCH: 1}
            | {s: len(names) for s, names in encoded.names.items() if s not in self.leaves}
        )

    def places(self, is_of: Mapping[str, NDArray[np.bool_]]) -> TokenPlaces:
        """The places of all tokens. `is_of`: per leaf, which unmasked tokens are its elements; empty for a single
        leaf.
        """
        spans = {leaf: self._spans(mine) for leaf, mine in is_of.items()} or {self.leaves[0]: self.every}
        return TokenPlaces(self.h, self.shape, self.n_rows, self.row_numbers, self.every, spans, is_of)

    def assemble(
        self,
        encoded: Encoded,
        values: Mapping[str, NDArray[np.float64]],
        device: torch.device,
        positions: Codes | None,
        named: bool,
    ) -> Index:
        """The index from encoded labels and attribute values."""
        places, size = encoded.places, self._sizes(encoded)
        edges = [(f.source.name, f.target.name) for f in self.h.fibrations if f.target.name != BATCH]
        for leaf in self.h.leaves:  # because the objective sums over rows
            if self.h.rows not in (leaf, *self.h.coarser(leaf)):
                edges.append((leaf.name, self.rows))
        edges += [(self.rows, group.name) for group in self.h.groups]
        parents = {
            (a, b): encoded.of_leaf(a, b) if a in self.leaves else encoded.parent(a, b, size[a]) for a, b in edges
        }

        def move(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return Index(
            hierarchy=self.h,
            leaves=tuple(self.leaves),
            shape=self.shape,
            n_rows=self.n_rows,
            row_numbers=self.row_numbers,
            every=self.every,
            spans=places.spans,
            numbers={leaf: Intervals.of(mine) for leaf, mine in places.is_of.items()},
            edges={edge: move(parent) for edge, parent in parents.items()},
            by_row=frozenset(edge for edge in edges if edge[0] in self.leaves and edge[1] in encoded.per_row),
            size=size,
            labels={s: names for s, names in encoded.names.items() if s not in self.leaves},
            values={k: torch.from_numpy(v).to(device) for k, v in values.items()},
            device=device,
            bounds=self.bounds,
            has_row_names=named,
            given_positions=positions,
        )

    def _wanted(self, labels: Mapping[str, Any]) -> list[str]:
        """The strata that take labels. Raises HierarchyIndexError for missing labels."""
        strata, groups = [s.name for s in self.h.order], [s.name for s in self.h.groups]
        wanted = takes_labels(self.h)
        for name in wanted:
            if labels.get(name) is None:
                given = [k for k, v in labels.items() if v is not None]
                hint = (
                    f"if the rows of the batch are its elements, declare Hierarchy(rows={name})"
                    if self.rows not in strata and name not in groups
                    else ""
                )
                per_row = name in groups or self.rows in strata
                fine = (
                    name not in groups and self.rows in strata and Stratum(name) not in self.h.coarser(self.h.rows)
                )  # or it lies beside the rows
                per = f"one label per token, shape {list(self.shape)}" if fine else "one label per row"
                if not per_row:  # labels per row and per token both make sense
                    per += ", or one per token"
                raise HierarchyIndexError(
                    f"no labels for '{name}'",
                    required=f"{name}=[{per}], any hashable values",
                    found=f"labels for {', '.join(given)}" if given else "no labels",
                    remedy=hint or f"pass {name}=...",
                )
        return wanted

    def _is_of(self, labels: Mapping[str, Any]) -> dict[str, NDArray[np.bool_]]:
        """Per leaf, which unmasked tokens are its elements: [tokens]; empty for a single leaf."""
        if len(self.leaves) == 1:
            return {}
        lacking = [leaf for leaf in self.leaves if labels.get(leaf) is None]
        if self.rows in self.leaves:
            raise HierarchyIndexError(
                f"the rows are '{self.rows}', a sampled stratum",
                required="rows coarser than the sampled strata",
                remedy="declare Hierarchy(rows=...) with another stratum",
            )
        if len(lacking) > 1:
            raise HierarchyIndexError(
                f"no masks for {' and '.join(map(repr, lacking))}",
                required=f"masks for all of {', '.join(self.leaves)} except one",
                remedy=f"pass {lacking[0]}=... of the shape {list(self.shape)}, True on its tokens",
            )
        found: dict[str, NDArray[np.bool_]] = {}
        taken = np.zeros(len(self.every), np.bool_)
        for leaf in self.leaves:
            if leaf in lacking:
                continue
            mine = as_mask(labels[leaf], f"the mask of '{leaf}'")
            if mine.shape != self.shape and (mine.size or math.prod(self.shape)):
                raise HierarchyIndexError(
                    f"the mask of '{leaf}' has shape {list(mine.shape)}",
                    required=f"{list(self.shape)}, one value per token",
                )
            found[leaf] = mine.reshape(-1) if self.keep is None else mine.reshape(-1)[self.keep]
            twice = found[leaf] & taken
            if twice.any():
                token = int(np.argmax(twice))
                first = next(other for other in found if found[other][token])
                raise HierarchyIndexError(
                    f"{self._token(token)} is in two leaves: '{first}' and '{leaf}'",
                    required="every unmasked token is an element of exactly one leaf",
                    remedy=f"leave one of the masks out: '{leaf}' then has the tokens that no other leaf has",
                )
            taken |= found[leaf]
        if lacking:
            found[lacking[0]] = ~taken
        elif not taken.all():
            raise HierarchyIndexError(
                f"{self._token(int(np.argmin(taken)))} belongs to no leaf",
                required=f"every unmasked token is an element of one of {', '.join(self.leaves)}",
                remedy="mask it, or leave one of the leaves' masks out: that leaf has the tokens that no other has",
            )
        return {leaf: found[leaf] for leaf in self.leaves}

    def _spans(self, mine: NDArray[np.bool_]) -> Spans:
        """The places of the unmasked tokens of one leaf."""
        numbers = Intervals.of(mine)
        runs = numbers
        if self.keep is not None:
            keep = np.zeros(len(self.keep), np.bool_)
            keep[self.keep] = mine
            runs = Intervals.of(keep)
        return Spans.of(runs, numbers.before_places(self.every.before))

    def _token(self, token: int) -> str:
        return f"token {place_of(int(self.every.runs.place(np.array([token]))[0]), self.shape)}"


# ---------------------------------------------------------------- masks and offsets from the user


def as_mask(mask: Any, what: str) -> NDArray[np.bool_]:
    array = to_numpy(mask, what)
    if array.dtype == np.bool_:
        return array
    wrong = ~np.isin(array, (0, 1)) if array.dtype.kind in "iuf" else np.ones(array.shape, np.bool_)
    if array.dtype.kind == "O":
        wrong = np.vectorize(lambda v: not isinstance(v, (bool, int)) or v not in (0, 1), otypes=[bool])(array)
    if wrong.any() or array.dtype.kind not in "iuf":
        raise HierarchyIndexError(
            f"{what} has values other than 0 and 1",
            required="booleans, or 0 and 1",
            found=f"dtype {array.dtype}{_first(array, wrong)}",
            remedy=_meant(array) if array.dtype.kind in "if" else "",
        )
    return array.astype(np.bool_)


def _meant(array: NDArray[Any]) -> str:
    if (array == IGNORED).any():
        return f"from labels with {IGNORED}, pass labels != {IGNORED}"
    if ((array == 0) | (array < -1e4)).all():
        return "from an additive attention mask, pass mask == 0, and mask the prompt too"
    return "from token ids, pass ids != pad_token_id" if (array > 1).any() else ""


def _first(array: NDArray[Any], wrong: NDArray[np.bool_]) -> str:
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return f", {shown(array.item(place))}" + (f" at {list(place)}" if place else "")


def as_offsets(offsets: Any, least: int) -> Codes:
    """The offsets as int64 [n + 1], for at least `least` rows."""
    array = to_numpy(offsets, "the offsets")
    rule = "cu_seqlens: whole numbers [n + 1], starting at 0, never decreasing"
    if array.ndim != 1 or len(array) < 1 + least or array.dtype.kind not in "iu":
        raise HierarchyIndexError(
            f"offsets of shape {list(array.shape)} and dtype {array.dtype}",
            required=rule,
            remedy="offsets.long()" if array.ndim == 1 and array.dtype.kind == "f" else "",
        )
    if int(array.max()) > np.iinfo(np.int64).max:
        raise HierarchyIndexError(f"the offsets reach {array.max()}", required=rule)
    array = array.astype(np.int64)
    falls = np.diff(array) < 0
    if array[0] != 0 or falls.any():
        bad = (
            f"they start at {array[0]}"
            if array[0]
            else f"offsets[{int(np.argmax(falls)) + 1}] is smaller than the one before"
        )
        ways = [f"from lengths pass {_some([0, *np.cumsum(array).tolist()])}"] * bool(array[0] > 0 and array.min() >= 0)
        ways += [f"from row ends pass {_some([0, *array.tolist()])}"] * bool(array[0] > 0 and not falls.any())
        raise HierarchyIndexError(
            "the offsets do not delimit rows",
            required=rule,
            found=bad,
            remedy=", ".join(ways),
        )
    return array


def _some(numbers: list[int]) -> str:
    return f"[{', '.join(map(str, numbers[:4]))}{', ...' * (len(numbers) > 4)}]"


def _every_place(n: int) -> Intervals:
    try:
        np.empty(n, np.bool_)
    except (MemoryError, ValueError):
        raise HierarchyIndexError(
            f"the offsets end at {n}",
            required="as many tokens as memory allows",
            remedy="give cu_seqlens: their last entry is the number of tokens",
        ) from None
    return Intervals.first(n)


# ---------------------------------------------------------------- keywords

WAYS = "mask=[B, T] for padded tokens, or offsets=[n+1] for packed ones"
RESPONSE = "pass it as mask=..., True on response tokens"
LENGTHS = "pass offsets=..., the cumulative lengths from 0: [0, *itertools.accumulate(lengths)]"
RANKS = "the ranks that share the batch are group="
OF_CALLS = "op.loss(...) takes it, with the index"
MEANT = {
    **dict.fromkeys((*keywords.MASKS, "masks"), RESPONSE),
    **dict.fromkeys(keywords.WHOLE_MASKS, f"{RESPONSE} only: an attention mask is True on prompts too"),
    **dict.fromkeys(keywords.OFFSETS, "pass it as offsets=..."),
    **dict.fromkeys(keywords.LENGTHS, LENGTHS),
    "position_ids": "pass it as positions=..., if rows are pieces of longer sequences",
    **dict.fromkeys(("groups", "process_group"), RANKS),
    **dict.fromkeys(("log_probs", "old_log_probs", "advantages", "rewards", "policies", "parameters"), OF_CALLS),
}


def takes_labels(h: Hierarchy) -> list[str]:
    """The strata that need labels."""
    rest = (*h.leaves, h.rows)
    return [s.name for s in h.order if s not in rest and s.name != BATCH] + [s.name for s in h.groups]


def refuse_positional(h: Hierarchy, given: tuple[Any, ...]) -> None:
    if given:
        words = listed(an(type(value).__name__) for value in given)
        labels = "".join(f", {name}=..." for name in takes_labels(h))
        raise HierarchyIndexError(
            f"index of '{h.name}': {words} without a keyword",
            required=WAYS + (f", and labels for {', '.join(takes_labels(h))}" if labels else ""),
            remedy=f"op.index(mask=mask{labels})",
        )


def refuse_others(h: Hierarchy, labels: Mapping[str, Any]) -> None:
    """Refuse keywords that are not strata with labels."""
    wanted, leaves = takes_labels(h), [s.name for s in h.leaves]
    accepted = [*wanted, *([h.rows.name] if h.rows not in h.leaves else []), *(leaves if len(leaves) > 1 else [])]
    for name in labels:
        if name in accepted:
            continue
        if name == BATCH and h.order and any(s.name == BATCH for s in h.order):
            raise HierarchyIndexError(f"labels for '{BATCH}', which has one element", remedy=f"leave {BATCH}= out")
        remedy = RANKS if is_group(labels[name]) else suggest(name.lower(), [*accepted, "mask", "offsets", "positions"])
        if name == "labels":
            remedy = "every stratum has its own keyword" + "".join(f", {s}=..." for s in wanted[:2])
        if name in leaves:
            remedy = f"leave it out: every unmasked token is {an(name)}"
        fibrations = ", ".join(f.name for f in h.fibrations)
        shape = " → ".join(s.name for s in reversed(h.order)) if h.shape.is_chain else f"{{{fibrations}}}"
        if not wanted and len(leaves) == 1 and not remedy and name not in MEANT:
            only = ", ".join(s.name for s in h.order)
            raise HierarchyIndexError(
                f"no stratum '{name}'",
                required=f"no labels: its only {'stratum is' if len(h.order) == 1 else 'strata are'} {only}",
                remedy=f"leave {name}= out",
            )
        raise HierarchyIndexError(
            f"unknown {'keyword' if name in MEANT else 'label'} '{name}'",
            required=f"labels for {', '.join(wanted) or 'no stratum'}"
            + (f", and masks for {', '.join(leaves)}" if len(leaves) > 1 else ""),
            found=f"the hierarchy is {shape}"
            + (f", with groups by {', '.join(s.name for s in h.groups)}" if h.groups else ""),
            remedy=MEANT.get(name, remedy),
        )


# ---------------------------------------------------------------- positions

POSITIONS = "positions"  # of `Operator.index`


def read_positions(
    given: Any, shape: tuple[int, ...], every: Spans, keep: NDArray[np.bool_] | None, token: Callable[[int], str]
) -> Codes | None:
    """The position of every unmasked token, from positions of all places. `every`: the unmasked tokens; `token`
    describes one.
    """
    if given is None:
        return None
    array = to_numpy(given, f"the {POSITIONS}")
    rule = f"whole numbers from 0, of the batch's shape {list(shape)}, that ascend along every row"
    if array.shape != shape and (array.size or math.prod(shape)):
        raise HierarchyIndexError(f"the {POSITIONS} have shape {list(array.shape)}", required=rule)
    if array.size and array.dtype.kind not in "iu":
        raise HierarchyIndexError(f"the {POSITIONS} have dtype {array.dtype}", required=rule)
    mine = array.reshape(-1) if keep is None else array.reshape(-1)[keep]
    wrong = (mine < 0) | (mine > LAST)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise HierarchyIndexError(f"{token(at)} has the position {mine[at]}", required=rule)
    mine = mine.astype(np.int64)
    falls = mine[1:] <= mine[:-1]
    falls[every.before[1:-1] - 1] = False  # between two rows
    if falls.any():
        at = int(np.argmax(falls))
        raise HierarchyIndexError(
            f"{token(at)} has the position {mine[at]}, and {token(at + 1)} behind it {mine[at + 1]}",
            required=rule,
            found="a row whose tokens are not in the order in which they were sampled",
            remedy=f"give every token its position in the whole sequence; {POSITIONS} may have gaps",
        )
    return mine


def check_order(index: Index) -> None:
    """Refuse elements whose tokens have no order although a formula reads one. The error names rows or tokens."""
    for over, read in read_over(index.hierarchy).items():
        scattered = index.in_several_rows(over)
        if not scattered.any():
            continue
        if index.given_positions is None:
            element = int(np.argmax(scattered))
            rows = torch.cat([at[over_ == element] for over_, at in index.over_rows(over)]).unique()
            found = " and ".join(index.describe_row(int(row)) for row in rows[:2])
            raise unordered(read, index.describe_element(over, element), f"tokens in {found}")
        _refuse_repeats(index, over)


def read_over(h: Hierarchy) -> dict[str, Ordered]:
    """The strata over which an order is read, each with one formula that reads it."""
    return {str(a.over): a for a in h.ordered}


def unordered(read: Ordered, element: str, found: str) -> HierarchyIndexError:
    """The error for an element in several pieces without positions."""
    return HierarchyIndexError(
        f"{element} spans several rows or ranks, which gives its tokens no order",
        required=f"{POSITIONS}=, of the batch's shape: the position of each token in its {read.over}",
        found=f"{found}; {read} reads the order of tokens",
        remedy=f"pass {POSITIONS}=..., numbered through all pieces of {an(str(read.over))}",
    )


def runs_of(local: Index, over: str, number: Codes, several: NDArray[np.bool_]) -> Codes:
    """The `position_ranges` of this rank's tokens over elements that `several` ranks share: int64 [3, intervals].

    `number`: the whole batch's number of each of this rank's elements.
    """
    leaves = local.leaves_over(over)
    order, parent = local.sorted_by(over, leaves)
    order = order[several[number[parent[order]]]]
    keys = np.concatenate([local.keys_of(leaf) for leaf in leaves])
    return position_ranges(number[parent[order]], keys[order])


def _refuse_repeats(index: Index, over: str) -> None:
    leaves = index.leaves_over(over)
    keys = np.concatenate([index.keys_of(leaf) for leaf in leaves])
    order, parent = index.sorted_by(over, leaves)
    again = np.flatnonzero((keys[order][1:] == keys[order][:-1]) & (parent[order][1:] == parent[order][:-1]))
    if len(again):
        numbers = np.concatenate([index.token_numbers(leaf) for leaf in leaves])
        one, other = sorted(int(numbers[i]) for i in order[again[0] : again[0] + 2])
        element = index.describe_element(over, int(parent[order[again[0]]]))
        raise HierarchyIndexError(
            f"{index.describe_token(one)} and {index.describe_token(other)} both have the position "
            f"{keys[order[again[0]]]} in {element}",
            required=f"positions that differ between the tokens of {an(over)}",
            remedy=f"number the tokens through all pieces of {an(over)}",
        )
