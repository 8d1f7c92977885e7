"""Labels of rows, of tokens, or of other labels → element numbers and their parents."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.errors import HierarchyIndexError, an, shown, suggest
from fibration.language.atoms import BATCH, Attribute, Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.strata import Shape
from fibration.runtime.index.spans import Spans, place_of
from fibration.runtime.sums import Codes
from fibration.runtime.tracing import requires_grad

Names = tuple[Hashable, ...]


@dataclass(frozen=True)
class TokenPlaces:
    """The places of a batch's unmasked tokens, their rows and their leaves."""

    hierarchy: Hierarchy
    shape: tuple[int, ...]
    n_rows: int
    row_numbers: Codes  # [rows that are elements]
    every: Spans  # all unmasked tokens
    spans: Mapping[str, Spans]  # of each leaf
    is_of: Mapping[str, NDArray[np.bool_]]  # [tokens] per leaf: which are its elements; empty for a single leaf

    def _leaves_over(self, stratum: str) -> list[str]:
        h = self.hierarchy
        if not self.is_of:
            return list(self.spans)
        return [
            leaf.name
            for leaf in h.leaves
            if Stratum(stratum) not in h.strata or leaf in h.shape.leaves_over(Stratum(stratum))  # else the rows
        ]

    def lies_over(self, stratum: str) -> NDArray[np.bool_]:
        """Whether each unmasked token lies over an element of `stratum`: bool [tokens]."""
        if not self.is_of:
            return np.ones(len(self.every), np.bool_)
        return np.logical_or.reduce([self.is_of[leaf] for leaf in self._leaves_over(stratum)])

    def rows_over(self, stratum: str) -> NDArray[np.bool_]:
        """Whether each non-empty row has a token over an element of `stratum`: bool [rows with tokens]."""
        result = np.zeros(len(self.row_numbers), np.bool_)
        for leaf in self._leaves_over(stratum):
            result[self.spans[leaf].rows] = True
        return result

    def token(self, token: int) -> str:
        return f"token {place_of(int(self.every.runs.place(np.array([token]))[0]), self.shape)}"


@dataclass(frozen=True)
class Encoded:
    """Element numbers of every labelled stratum, per row or per token; -1 where no element is needed."""

    places: TokenPlaces
    per_row: Mapping[str, Codes]
    per_token: Mapping[str, Codes]
    names: Mapping[str, Names]
    kinds: Mapping[str, str]  # "row" or "token": whether labels were given per row or per token, if it matters

    def of_tokens(self, stratum: str) -> Codes:
        if stratum in self.per_token:
            return self.per_token[stratum]
        return np.repeat(self.per_row[stratum], self.places.every.sizes)

    def of_leaf(self, leaf: str, target: str) -> Codes:
        """The `target` element of each token of `leaf`; per row of its span if `target` is labelled per row."""
        if target in self.per_row:
            return self.per_row[target][self.places.spans[leaf].rows]
        below = self.per_token[target]
        return below[self.places.is_of[leaf]] if self.places.is_of else below

    def parent(self, source: str, target: str, size: int) -> Codes:
        """The `target` element of each of the `size` elements of `source`, which is not a leaf."""
        if source in self.per_row and target in self.per_row:
            above, below = self.per_row[source], self.per_row[target]
            keep = (above >= 0) & (below >= 0)
        else:
            above, below = self.of_tokens(source), self.of_tokens(target)
            keep = self.places.lies_over(source)
        if not keep.all():
            above, below = above[keep], below[keep]
        parent = np.full(size, -1)  # -1 stays for a row whose tokens over it are on another rank
        parent[above] = below
        wrong = np.flatnonzero(parent[above] != below)
        if len(wrong):
            element, rows = above[wrong[0]], self.places.hierarchy.rows.name
            two = [parent[element], below[wrong[0]]]
            found = [repr(self.names[target][b]) for b in two]
            if source == rows:  # the labels are per token, and a row allows only one
                tokens = np.flatnonzero(keep)
                first = sorted((int(np.argmax((above == element) & (below == b))), b) for b in two)
                found = [f"{self.names[target][b]!r} at {self.places.token(tokens[i])}" for i, b in first]
                remedy = f"give one {target} per {source}: all tokens of a row need the same label"
            elif target == rows:
                remedy = f"labels are unique in the whole batch: make them so, for example row * 1000 + {source}"
            else:
                remedy = f"labels are unique in the whole batch: use for example the pair ({target}, {source})"
            raise HierarchyIndexError(
                f"{source} {self.names[source][element]!r} lies over two elements of {target}",
                required=f"every {source} lies over exactly one {target}",
                found=" and ".join(found),
                remedy=remedy,
            )
        return parent


class Encoder:
    """Numbers the elements of every labelled stratum in order of first appearance.

    `spread`: the batch is over ranks. Rows of one name are then pieces of one row.
    """

    def __init__(self, places: TokenPlaces, spread: bool = False) -> None:
        self.places, self.h, self.spread = places, places.hierarchy, spread
        self.kinds: dict[str, str] = {}
        self.rows = self.h.rows.name

    @cached_property
    def shape(self) -> Shape:
        return whole_batch(self.h)

    def encode(self, labels: Mapping[str, Any], row_labels: Any) -> Encoded:
        """`labels`: of every stratum between leaves, rows and batch; `row_labels`: names of the rows, or None."""
        per_row: dict[str, Codes] = {self.rows: np.arange(len(self.places.row_numbers))}
        per_token: dict[str, Codes] = {}
        names: dict[str, Names] = dict.fromkeys([*labels, self.rows], ())
        found = Encoded(self.places, per_row, per_token, names, self.kinds)
        for name, given in labels.items():
            if not isinstance(given, Mapping):
                codes, names[name], by_row = self._read(name, given)
                (per_row if by_row else per_token)[name] = codes
        per_row[self.rows], names[self.rows] = self._row_names(row_labels)
        if self.h.rows in self.h.strata and not self.spread:
            over = self.places.rows_over(self.rows)
            if not over.all():
                raise nothing_over(self.h, int(self.places.row_numbers[np.argmin(over)]))
        for stratum in (*reversed(self.h.order), *self.h.groups):  # finer strata first: mappings start from them
            if isinstance(labels.get(stratum.name), Mapping):
                codes, names[stratum.name], by_row = self._translate(stratum, labels[stratum.name], found)
                (per_row if by_row else per_token)[stratum.name] = codes
        return found

    # ------------------------------------------------------------ labels of rows or tokens

    def _read(self, name: str, given: Any) -> tuple[Codes, Names, bool]:
        """Numbers per row, or per token if the labels have the tokens' shape."""
        given = listed(given, self.places.shape)
        if not isinstance(given, (Sequence, np.ndarray)) or isinstance(given, (str, bytes)):
            raise HierarchyIndexError(
                f"the labels for '{name}' are {an(type(given).__name__)}",
                required="one label per row",
                remedy="pass one of its columns" if hasattr(given, "columns") else f"[{name} of each row], as a list",
            )
        shape, n_rows = self.places.shape, self.places.n_rows
        nested = len(shape) == 2 and len(given) == n_rows > 0
        lists = given.ndim > 1 if isinstance(given, np.ndarray) else nested and all(isinstance(g, list) for g in given)
        nested = nested and lists
        # With as many tokens as rows, strata coarser than rows are labelled per row, strata between per token.
        stratum = Stratum(name)
        between = self.h.rows in self.h.coarser(stratum)
        per_token = nested or (len(shape) == 1 and len(given) == shape[0] and (shape[0] != n_rows or between))
        either = shape == (n_rows,) == (len(given),)
        differs = self._differs(name, given) if either and (self.spread or self._is_either(stratum)) else None
        if either and self._is_either(stratum):
            if differs:
                raise HierarchyIndexError(
                    f"{len(given)} labels for '{name}' may be per token or per row: the batch has as many tokens "
                    "as rows",
                    required="a shape that is either per token or per row",
                    found=differs,
                    remedy="leave the rows without tokens out of the offsets",
                )
            per_token = True
        if nested:
            if any(len(g) != shape[1] for g in given):
                lengths = {len(g) for g in given}
                found = f"have shape {[len(given), *lengths]}" if len(lengths) == 1 else "are ragged"
                what, one = ", or one hashable label per row (a tuple, not a list)", ".squeeze(-1) makes [B] of [B, 1]"
                if between:
                    what, one = f": '{name}' lies between tokens and {self.rows}", self._repeated(name)
                raise HierarchyIndexError(
                    f"the labels for '{name}' {found}",
                    required=f"shape {list(shape)}{what}",
                    remedy=one if lengths == {1} else "",
                )
            given = given.reshape(-1) if isinstance(given, np.ndarray) else list(chain.from_iterable(given))
        if not per_token and ((between and n_rows) or len(given) != n_rows):
            as_tokens = f"one per token, shape {list(shape)}"
            raise HierarchyIndexError(
                f"{len(given)} label{'s' * (len(given) != 1)} for '{name}'",
                required=f"{as_tokens}: '{name}' lies between tokens and {self.rows}"
                if between
                else f"one per row, {n_rows}, or {as_tokens}",
                remedy=self._repeated(name) if between and len(given) == n_rows else self._length_of(given),
            )
        all_places = self.places.every.runs.places() if per_token else self.places.row_numbers
        # only tokens and rows over the stratum need a label
        needed = np.flatnonzero((self.places.lies_over if per_token else self.places.rows_over)(name))
        if name == self.rows:
            needed = np.arange(len(all_places))
        if len(needed) and (differs or not either):
            self.kinds[name] = "token" if per_token else "row"
        codes = np.full(len(all_places), -1, np.int64)
        where = all_places[needed]
        if len(where) < len(given):
            given = given[where] if isinstance(given, np.ndarray) else [given[i] for i in where.tolist()]
        if isinstance(given, np.ndarray) and not (per_token and given.min(initial=0) < 0):
            codes[needed], names = _of_integers(given)
            return codes, names, not per_token
        labels = _to_list(given)
        if any(issubclass(kind, (Tensor, np.ndarray)) for kind in set(map(type, labels))):
            labels = [plain(label) for label in labels]
        try:
            numbers: dict[Hashable, int] = dict.fromkeys(labels, 0)
        except TypeError:  # a label is not hashable
            numbers = {}
        closer = not numbers or any(
            label is None or label != label or (per_token and isinstance(label, Number) and label != abs(label))  # type: ignore[arg-type]
            for label in numbers
        )  # None, NaN, or of tokens a number that may equal a negative integer
        for i, label in enumerate(labels) if closer else ():
            error = self._error(name, label, int(needed[i]), where[i], per_token)
            if error is not None:
                raise error
        for number, label in enumerate(numbers):
            numbers[label] = number
        codes[needed] = np.fromiter(map(numbers.__getitem__, labels), np.int64, len(labels))
        return codes, tuple(numbers), not per_token

    def _error(self, name: str, label: Any, number: int, at: int, per_token: bool) -> HierarchyIndexError | None:
        """The error for a label that is refused. `number`, `at`: of its token or row, and its place in the tensors."""
        place = f"{'token' if per_token else 'row'} {at}"
        try:
            hash(label)
        except TypeError:
            if per_token and isinstance(label, list):
                return HierarchyIndexError(
                    f"{self.places.token(number)} has {len(label)} labels for '{name}': {shown(label)}",
                    required=f"one {name} for each token, shape {list(self.places.shape)}",
                    remedy=".squeeze(-1)"
                    if len(label) == 1
                    else "of the top k take the first, x[..., 0], or all of them as one label, tuple(sorted(...)); for "
                    "one-hot rows x.argmax(-1)",
                )
            return HierarchyIndexError(
                f"the label {label!r} of {place} for '{name}' is not hashable",
                required="strings, numbers, tuples, or other hashable values",
                remedy="a list becomes a label by tuple(...)" if isinstance(label, list) else "",
            )
        if per_token and isinstance(label, (int, np.integer)) and label < 0:
            return HierarchyIndexError(
                f"{self.places.token(number)} has the label {label!r} for '{name}'",
                required="a label for every token: negative numbers mean none in most data",
                remedy="leave the token out of the response mask, or label it by a string or a number from 0",
            )
        if label is not None and label == label:
            return None
        if per_token and not self.h.shape.is_chain:  # other tokens may need no label
            place = self.places.token(number)
        return HierarchyIndexError(
            f"{place} has no label for '{name}': {label!r}",
            required=f"every unmasked element lies over exactly one {name}",
            remedy="mask it, or give it a label of its own, such as 'none'",
        )

    def _repeated(self, name: str) -> str:
        """The remedy for labels per row of a stratum that has elements within a row."""
        shape = self.places.shape
        spread = f"np.repeat(np.asarray({name}).reshape(-1, 1), {shape[-1]}, 1)"
        if len(shape) == 1:
            spread = f"np.repeat(np.asarray({name}), np.diff(offsets))"
        return f"label every token; if each row is one {name}, pass {name}={spread}"

    def _length_of(self, given: Any) -> str:
        """The remedy for a wrong number of labels."""
        shape, places = self.places.shape, self.places
        if len(shape) == 2 and len(given) == shape[0] * shape[1] != shape[1]:
            return f"labels per token of padded rows need their shape: .reshape({shape[0]}, {shape[1]})"
        if len(shape) == 2 and len(given) == shape[1] and np.ndim(given[0]) == 1 and len(given[0]) == shape[0]:
            return "transpose them"
        if len(given) == len(places.row_numbers):
            return "rows without tokens take a label too, any label or None"
        return "masked tokens take a label too, any label or None" if len(given) == len(places.every) else ""

    def _is_either(self, stratum: Stratum) -> bool:
        """Whether labels per token and per row both make sense, so that only their shape tells."""
        if stratum in self.h.groups:
            return False
        if self.h.rows not in self.h.strata:
            return stratum != self.h.rows and not self.h.shape.is_chain
        return stratum not in (self.h.rows, *self.h.coarser(self.h.rows)) and self.h.rows not in self.h.coarser(stratum)

    def _differs(self, name: str, given: Any) -> str | None:
        """A token whose label differs between the readings per token and per row, in words; None if none does."""
        given = _to_list(given)
        positions, rows = self.places.every.runs.places(), self.places.every.row_of_token()
        for token in np.flatnonzero(self.places.lies_over(name)):
            one, other = plain(given[positions[token]]), plain(given[self.places.row_numbers[rows[token]]])
            if one is not other and one != other:
                return f"{one!r} and {other!r} for {self.places.token(int(token))}"
        return None

    def _row_names(self, given: Any) -> tuple[Codes, Names]:
        rows = self.places.row_numbers
        if given is None:
            return np.arange(len(rows)), tuple(rows.tolist())
        codes, names, by_row = self._read(self.rows, given)
        if not by_row or (len(names) != len(rows) and not self.spread):
            again = np.setdiff1d(np.arange(len(codes)), np.unique(codes, return_index=True)[1])
            twice = names[codes[again[0]]] if len(again) else "?"
            raise HierarchyIndexError(
                f"two rows are called {twice!r}",
                required=f"one name per {self.rows}, as every row is one",
                remedy=f"if they are pieces of one {self.rows}, order their tokens: pass positions=",
            )
        return codes, names

    # ------------------------------------------------------------ labels of labels

    def _translate(self, stratum: Stratum, given: Mapping[Any, Any], found: Encoded) -> tuple[Codes, Names, bool]:
        """Numbers per row or per token, from mappings of the labels directly over `stratum`."""
        name = stratum.name
        maps = self._maps(stratum, given)
        leaves = {self.shape.leaves_over(Stratum(source)) for source in maps}
        by_row = len(leaves) == 1 and all(source in found.per_row for source in maps)
        numbers: dict[Hashable, int] = {}
        codes = np.full(len(self.places.row_numbers if by_row else self.places.every), -1, np.int64)
        origin = np.full(len(codes), -1, np.int64)
        for number, (source, mapping) in enumerate(maps.items()):
            table = np.array([self._entry(name, source, label, mapping, numbers) for label in found.names[source]], int)
            here = np.flatnonzero((self.places.rows_over if by_row else self.places.lies_over)(source))
            mine = table[(found.per_row[source] if by_row else found.of_tokens(source))[here]]
            wrong = np.flatnonzero((codes[here] >= 0) & (codes[here] != mine))
            if len(wrong):
                at, labels = int(here[wrong[0]]), list(numbers)
                other = list(maps)[origin[at]]
                start = int(self.places.every.before[at]) if by_row else at
                token = start + int(np.argmax(self.places.lies_over(source)[start:]))  # the row's first one over it
                one = f"{name} {labels[codes[at]]!r} by way of {self._word(other, token, found)}"
                two = f"{labels[mine[wrong[0]]]!r} by way of {self._word(source, token, found)}"
                raise HierarchyIndexError(
                    f"{self._parting(token, other, source, found)} lies over {one}, and over {two}",
                    required="all paths agree: every path to a stratum leads to the same element",
                    remedy=f"correct one of the mappings for '{name}'",
                )
            codes[here], origin[here] = mine, number
        found_codes, order = renumbered(codes)
        labels = list(numbers)
        return found_codes, tuple(labels[i] for i in order), by_row

    def _maps(self, stratum: Stratum, given: Mapping[Any, Any]) -> dict[str, Mapping[Any, Any]]:
        """One mapping for every fibration into `stratum`."""
        name, above = stratum.name, self.shape.above(stratum)
        sources = [f.source.name for f in above]
        leaves = [f.source.name for f in above if f.source in self.h.leaves]
        if leaves:
            raise HierarchyIndexError(
                f"the labels for '{name}' are a mapping, and {leaves[0]} lies directly over it",
                required="mappings from labels, which tokens do not have",
                remedy=f"pass {name}=... with one label per token or per row",
            )
        nested = bool(given) and all(isinstance(m, Mapping) for m in given.values())
        if not nested and len(sources) > 1:
            raise HierarchyIndexError(
                f"one mapping for '{name}', over which {' and '.join(sources)} lie",
                required="a mapping for each: " + f"{name}={{{', '.join(f'{s!r}: {{...}}' for s in sources)}}}",
            )
        maps = dict(given) if nested else {sources[0]: given}
        unknown, lacking = ([s for s in one if s not in other] for one, other in ((maps, sources), (sources, maps)))
        if unknown or lacking:
            problem = f"no mapping from {lacking[0]!r}" if lacking else f"a mapping from {unknown[0]!r}"
            raise HierarchyIndexError(f"{problem} to '{name}'", required=f"one from each of {', '.join(sources)}")
        return {s: maps[s] for s in sources}

    def _entry(
        self, name: str, source: str, label: Hashable, mapping: Mapping[Any, Any], numbers: dict[Hashable, int]
    ) -> int:
        value = plain(mapping.get(label))
        try:
            if value is None or value != value:
                raise HierarchyIndexError(
                    f"the mapping from {source} to '{name}' has no entry for {source} {label!r}",
                    required=f"every {source} lies over exactly one {name}",
                    found=f"entries for {', '.join(map(repr, list(mapping)[:8])) or 'nothing'}",
                    remedy=f"add {label!r}: ...",
                )
            return numbers.setdefault(value, len(numbers))
        except TypeError:
            raise HierarchyIndexError(
                f"the label {value!r} of {source} {label!r} for '{name}' is not hashable",
                required="strings, numbers, tuples, or other hashable values",
            ) from None

    def _word(self, stratum: str, token: int, found: Encoded) -> str:
        return f"{stratum} {found.names[stratum][found.of_tokens(stratum)[token]]!r}"

    def _parting(self, token: int, one: str, other: str, found: Encoded) -> str:
        """The coarsest element under `token` that lies over both strata."""
        shape, ends = self.h.shape, {Stratum(one), Stratum(other)}
        both = [s for s in self.h.order if ends <= {s, *shape.coarser(s)} and self.places.lies_over(s.name)[token]]
        return self.places.token(token) if both[0] in self.h.leaves else self._word(both[0].name, token, found)


def nothing_over(h: Hierarchy, row: Hashable) -> HierarchyIndexError:
    leaves = [s.name for s in h.leaves if s in h.shape.leaves_over(h.rows)]
    return HierarchyIndexError(
        f"nothing lies over {h.rows.name} {row!r}",
        required=f"every row has a token that is an element of {' or '.join(leaves)}",
        found="only tokens of other leaves",
        remedy=f"let every leaf lie over {h.rows.name}, or mask that row",
    )


# ---------------------------------------------------------------- labels from tensors, arrays, lists and tables


def plain(label: Any) -> Any:
    """A label that can be compared: a 0-d tensor as a number, because tensors hash by identity; others as lists."""
    if isinstance(label, (Tensor, np.ndarray)):
        return label.item() if label.ndim == 0 else label.tolist()
    return label


def listed(value: Any, shape: tuple[int, ...]) -> Any:
    """The labels as a list. Integers and booleans per row or per token stay an array."""
    column = next((way for way in ("tolist", "to_list", "to_pylist") if hasattr(value, way)), None)
    if column and not isinstance(value, (Tensor, np.ndarray)):
        return getattr(value, column)()
    if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub" and (value.ndim == 1 or value.shape == shape):
        return value
    return _to_list(value)


def _to_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray)) else value


def renumbered(codes: Codes) -> tuple[Codes, Codes]:
    """Codes renumbered from 0 in order of first appearance (-1 stays), and the old code of each new one."""
    used, first = np.unique(codes[codes >= 0], return_index=True)
    order = used[np.argsort(first)]
    number = np.full(codes.max(initial=-1) + 2, -1)  # the last entry is for -1
    number[order] = np.arange(len(order))
    return number[codes], order


def _of_integers(labels: NDArray[Any]) -> tuple[Codes, Names]:
    if not len(labels):
        return np.zeros(0, np.int64), ()
    low, high = int(labels.min()), int(labels.max())
    if high - low <= 4 * len(labels) and high <= np.iinfo(np.int64).max:
        place = labels.astype(np.int64) - low
        first = np.full(high - low + 1, -1)
        first[place[::-1]] = np.arange(len(place) - 1, -1, -1)  # the last write wins: the first appearance
        order = np.sort(first[first >= 0])
        first[place[order]] = np.arange(len(order))
        return first[place], tuple(labels[order].tolist())
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[inverse], tuple(labels[first[order]].tolist())


# ---------------------------------------------------------------- attributes


def attribute_values(
    attribute: Attribute, given: Mapping[str, Any], encoded: Encoded, size: int, spread: bool, keyed: bool
) -> NDArray[np.float64]:
    """One number for each of the `size` elements of the attribute's stratum on this rank.

    `spread`: the batch is over ranks. `keyed`: rows have names from the caller.
    """
    places, stratum, what = encoded.places, attribute.on.name, f"attribute '{attribute.name}'"
    rows, is_of_tokens = places.hierarchy.rows.name, stratum in places.spans
    names = {} if is_of_tokens else encoded.names
    if attribute.name not in given:
        known = tuple(places.hierarchy.attributes)
        unknown = next((name for name in given if name not in known), None)
        raise HierarchyIndexError(
            f"{what} is missing",
            required=f"attributes={{'{attribute.name}': one number per {stratum}}}",
            found="" if unknown is None else f"{unknown!r}, which the hierarchy does not read",
            remedy="" if unknown is None else suggest(str(unknown), known),
        )
    value = given[attribute.name]
    if torch.is_grad_enabled() and requires_grad(value):
        raise HierarchyIndexError(
            f"{what} requires grad",
            required="numbers: an index has no gradient",
            remedy="pass its .detach()",
        )
    if isinstance(value, Mapping):
        if spread and stratum == rows and not keyed:
            raise HierarchyIndexError(
                f"{what} is a mapping from row numbers, which ranks do not have for the whole batch",
                required=f"one number per row of this rank: [{places.n_rows}]",
                remedy=f"pass {stratum}=keys to name the rows, and a mapping from these names",
            )
        lacking = [n for n in names.get(stratum, ()) if n not in value]
        if lacking or stratum not in names:
            if is_of_tokens:
                raise HierarchyIndexError(
                    f"{what} is a mapping, and {stratum} elements have no labels",
                    required=f"one number per token: an array of the shape {list(places.shape)}",
                )
            raise HierarchyIndexError(
                f"{what} has no value for {stratum} {lacking[:1]}", required=f"a value for every {stratum}"
            )
        array = _numbers([value[n] for n in names[stratum]], what)
    else:
        array = _numbers(to_numpy(value, what), what)
        if is_of_tokens and array.shape == places.shape:
            array = array.reshape(-1)[places.spans[stratum].runs.places()]
        elif stratum == rows and array.shape == (places.n_rows,):
            array = _of_pieces(attribute, array[places.row_numbers], encoded)
        elif array.ndim == 0:
            array = np.full(size, float(array))
        elif spread and not is_of_tokens and stratum != BATCH:
            raise HierarchyIndexError(
                f"{what} is given in the order of {stratum} elements, which ranks do not have for the whole batch",
                required=f"one number, or a mapping from labels: {{{stratum}: number}}"
                + (f", or one per row of this rank, [{places.n_rows}]" if stratum == rows else ""),
                remedy=f"pass {{label: number}} for the {stratum} labels of this rank",
            )
        elif array.shape != (size,):
            as_tokens = f", or {list(places.shape)} as the tokens" if is_of_tokens else ""
            repeat = f"repeat each number at the tokens of its {rows}, or declare the attribute on={rows}"
            raise HierarchyIndexError(
                f"{what} has shape {list(array.shape)}",
                required=f"one number per {stratum}: [{size}]{as_tokens}",
                remedy=repeat if is_of_tokens and array.shape == (places.n_rows,) else "",
            )
    bad = ~np.isfinite(array) | attribute.is_outside(array)
    if bad.any():
        i = int(np.argmax(bad))
        label = names[stratum][i] if stratum in names else i
        raise HierarchyIndexError(
            f"{what} of {stratum} {label!r} is {array[i]:g}",
            required=f"a finite number{_in_range(attribute)}",
            remedy=_out_of_range(attribute),
        )
    return array


def _of_pieces(attribute: Attribute, array: NDArray[Any], encoded: Encoded) -> NDArray[np.float64]:
    """One number per row element, from one per non-empty row of the tensors; rows of one key must agree."""
    rows = encoded.places.hierarchy.rows.name
    pieces, names = encoded.per_row[rows], encoded.names[rows]
    found = np.empty(len(names))
    found[pieces] = array
    wrong = np.flatnonzero((found[pieces] != array) & ~np.isnan(array))
    if len(wrong):
        element = pieces[wrong[0]]
        raise HierarchyIndexError(
            f"attribute '{attribute.name}' of {rows} {names[element]!r} has two values",
            required=f"one number for all rows of one {rows}",
            found=f"{array[wrong[0]]:.17g} and {found[element]:.17g}",
            remedy=f"give all pieces of {an(rows)} the same number",
        )
    return found


def _in_range(attribute: Attribute) -> str:
    bounded = attribute.lower is not None or attribute.upper is not None
    return f" in {attribute.range}" if bounded else " above 0" if attribute.positive else ""


def _out_of_range(attribute: Attribute) -> str:
    if attribute.lower is not None or attribute.upper is not None:
        return "proofs assume this range: give values inside it, or declare another range"
    if attribute.positive:
        return "proofs assume positive values; declare positive=False to drop the assumption"
    return ""


def to_numpy(value: Any, what: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        if value.is_nested or value.layout != torch.strided:
            kind = "a nested tensor" if value.is_nested else f"a tensor of the layout {value.layout}"
            remedy = "x.to_padded_tensor(0) for padded rows, or x.values() and x.offsets() for packed ones"
            raise HierarchyIndexError(
                f"{what}: {kind}", required="a dense tensor", remedy=remedy if value.is_nested else "x.to_dense()"
            )
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # type: ignore[no-any-return]
    try:
        return np.asarray(value)
    except ValueError:
        raise HierarchyIndexError(
            f"{what}: rows of several lengths", required="rows of one length, or offsets"
        ) from None


def _numbers(values: Any, what: str) -> NDArray[np.float64]:
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise HierarchyIndexError(
            f"{what} has values that are not numbers",
            required="real numbers, which convert to float64",
            found=shown(values),
        ) from None
