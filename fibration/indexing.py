"""Masks, offsets and labels → an index: every problem with them is named with its row, label or element."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.batch import Codes
from fibration.errors import HierarchyIndexError
from fibration.index import Index
from fibration.spec import Hierarchy
from fibration.symbols import BATCH, Attribute


def build_index(
    hierarchy: Hierarchy,
    *,
    mask: Any = None,
    offsets: Any = None,
    attributes: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    labels: Mapping[str, Any],
) -> Index:
    """See `Operator.index`."""
    return _Builder(hierarchy, mask, offsets, device).build(labels, attributes or {})


class _Builder:
    def __init__(self, hierarchy: Hierarchy, mask: Any, offsets: Any, device: torch.device | str | None) -> None:
        self.h = hierarchy
        self.here = f"index of '{hierarchy.name}'"
        self.leaf, self.rows = hierarchy.leaf.name, hierarchy.rows.name
        if mask is None and offsets is None:
            raise HierarchyIndexError(
                f"{self.here}: neither mask nor offsets",
                required="mask=[B, T] for padded tokens, or offsets=[n+1] for packed ones",
            )
        given = mask if mask is not None else offsets
        self.device = (
            torch.device(device)
            if device is not None
            else given.device
            if isinstance(given, Tensor)
            else torch.device("cpu")
        )
        self.device = torch.empty(0, device=self.device).device  # "cuda" means the current one: "cuda:0"
        keep = None if mask is None else self._mask(mask)
        if offsets is None:
            assert keep is not None
            self.shape: tuple[int, ...] = tuple(keep.shape)
            if keep.ndim != 2:
                raise HierarchyIndexError(
                    f"{self.here}: the mask has shape {list(keep.shape)}",
                    required="[B, T], or a packed [N] together with offsets",
                )
            self.n_rows = self.shape[0]
            sizes = np.count_nonzero(keep, axis=1)
        else:
            bounds = self._offsets(offsets)
            self.shape, self.n_rows = (int(bounds[-1]),), len(bounds) - 1
            sizes = np.diff(bounds)
            if keep is not None and keep.shape != self.shape:
                raise HierarchyIndexError(
                    f"{self.here}: the mask has shape {list(keep.shape)}",
                    required=f"{list(self.shape)}, as the offsets say",
                )
            if keep is not None:  # how many unmasked tokens come before each bound
                sizes = np.diff(np.concatenate([[0], np.cumsum(keep)])[bounds])
        self.positions = np.arange(self.shape[0]) if keep is None else np.flatnonzero(keep)
        if not len(self.positions):
            raise HierarchyIndexError(
                f"{self.here}: the batch is empty",
                required="at least one unmasked token",
                found=f"shape {list(self.shape)}, nothing unmasked",
                remedy="skip the update for this batch",
            )
        self.row_numbers = np.flatnonzero(sizes)
        self.row_of_token = np.repeat(np.arange(len(self.row_numbers)), sizes[self.row_numbers])

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        array = _to_numpy(mask, f"{self.here}: the mask")
        if array.dtype == np.bool_:
            return array
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise HierarchyIndexError(
                f"{self.here}: the mask holds values other than 0 and 1", required="booleans, or 0 and 1"
            )
        return array.astype(np.bool_)

    def _offsets(self, offsets: Any) -> Codes:
        array = _to_numpy(offsets, f"{self.here}: the offsets")
        rule = "cu_seqlens: whole numbers [n + 1], starting at 0, never decreasing"
        if array.ndim != 1 or len(array) < 2 or array.dtype.kind not in "iu":
            raise HierarchyIndexError(
                f"{self.here}: offsets of shape {list(array.shape)} and dtype {array.dtype}", required=rule
            )
        steps = np.diff(array.astype(np.int64))
        if array[0] != 0 or (steps < 0).any():
            bad = (
                f"they start at {array[0]}"
                if array[0]
                else f"offsets[{int(np.argmax(steps < 0)) + 1}] is smaller than the one before"
            )
            raise HierarchyIndexError(f"{self.here}: the offsets do not delimit rows", required=rule, found=bad)
        return array.astype(np.int64)

    # ------------------------------------------------------------ labels

    def build(self, labels: Mapping[str, Any], attributes: Mapping[str, Any]) -> Index:
        chain = [s.name for s in self.h.chain]
        wanted = [s for s in chain if s not in (self.leaf, self.rows, BATCH)]
        accepted = [*wanted, *([self.rows] if self.rows != self.leaf else [])]
        for name in labels:
            if name not in accepted:
                raise HierarchyIndexError(
                    f"{self.here}: unknown label '{name}'",
                    required=f"labels for {', '.join(wanted) or 'nothing'}",
                    found=f"the hierarchy is {' → '.join(reversed(chain))}",
                )
        for name in wanted:
            if labels.get(name) is None:
                given = [k for k, v in labels.items() if v is not None]
                hint = (
                    f"if the rows of the batch are its elements, declare Hierarchy(rows={name})"
                    if self.rows not in chain
                    else ""
                )
                raise HierarchyIndexError(
                    f"{self.here}: no labels for '{name}'",
                    required=f"{name}=[one label per row], any hashable values",
                    found=f"labels for {', '.join(given) or 'nothing'}",
                    remedy=hint or f"pass {name}=...",
                )

        tokens, rows = len(self.positions), len(self.row_numbers)
        per_token: dict[str, Codes] = {self.rows: self.row_of_token}
        per_row: dict[str, Codes] = {self.rows: np.arange(rows)}
        names: dict[str, tuple[Hashable, ...]] = {}
        for name in wanted:
            code, names[name], by_row = self._encode(name, labels[name])
            (per_row if by_row else per_token)[name] = code
        names[self.rows] = self._row_names(labels.get(self.rows))
        names = {k: v for k, v in names.items() if k != self.leaf}

        size = {self.leaf: tokens, self.rows: rows, BATCH: 1, **{s: len(names[s]) for s in wanted}}
        edges = [(f.source.name, f.target.name) for f in self.h.fibrations if f.target.name != BATCH]
        if self.rows not in chain and self.rows != self.leaf:
            edges.append((self.leaf, self.rows))
        parents = {}

        def of_tokens(name: str) -> Codes:
            return per_token[name] if name in per_token else per_row[name][self.row_of_token]

        for source, target in edges:
            if source == self.leaf:  # every token is an element of its own
                parents[source, target] = of_tokens(target)
                continue
            by_row = source in per_row and target in per_row
            pair = (per_row[source], per_row[target]) if by_row else (of_tokens(source), of_tokens(target))
            parents[source, target] = self._parent(source, target, *pair, size[source], names)
        values = {a.name: self._attribute(a, attributes, size, names) for a in self.h.attributes.values()}
        for name in attributes:
            if name not in values:
                raise HierarchyIndexError(
                    f"{self.here}: unknown attribute '{name}'", required=f"one of {', '.join(values) or 'none'}"
                )
        move = {k: torch.from_numpy(np.ascontiguousarray(v)).to(self.device) for k, v in parents.items()}
        return Index(
            hierarchy=self.h,
            shape=self.shape,
            n_rows=self.n_rows,
            positions=torch.from_numpy(self.positions).to(self.device),
            row_numbers=self.row_numbers,
            row_of_token=torch.from_numpy(np.ascontiguousarray(self.row_of_token)).to(self.device),
            parents=move,
            size=size,
            labels=names,
            values={k: torch.from_numpy(v).to(self.device) for k, v in values.items()},
            device=self.device,
        )

    def _encode(self, name: str, given: Any) -> tuple[Codes, tuple[Hashable, ...], bool]:
        """Numbers in the order of first appearance; per row, or per token where the labels have the tokens' shape."""
        given = _to_list(given)
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
            raise HierarchyIndexError(
                f"{self.here}: the labels for '{name}' are a {type(given).__name__}", required="one label per row"
            )
        nested = len(self.shape) == 2 and len(given) == self.n_rows and all(isinstance(g, list) for g in given)
        # As many tokens as rows: what lies above the rows is labelled by row, what lies below them by token.
        fine = name in [s.name for s in self.h.chain if self.h.rows in self.h.coarser(s)]
        per_token = nested or (
            len(self.shape) == 1 and len(given) == self.shape[0] and (self.shape[0] != self.n_rows or fine)
        )
        if nested:
            if any(len(g) != self.shape[1] for g in given):
                raise HierarchyIndexError(
                    f"{self.here}: the labels for '{name}' are ragged", required=f"shape {list(self.shape)}"
                )
            given = [label for line in given for label in line]
        if not per_token and len(given) != self.n_rows:
            raise HierarchyIndexError(
                f"{self.here}: {len(given)} labels for '{name}'",
                required=f"one per row, {self.n_rows}, or one per token, shape {list(self.shape)}",
            )
        chosen = self.positions if per_token else self.row_numbers
        numbers: dict[Hashable, int] = {}
        codes = np.empty(len(chosen), np.int64)
        for i, place in enumerate(chosen):
            label = _plain(given[place])
            try:
                missing = label is None or label != label
                codes[i] = numbers.setdefault(label, len(numbers))
            except TypeError:
                at = f"{'token' if per_token else 'row'} {place}"
                raise HierarchyIndexError(
                    f"{self.here}: the label {label!r} of {at} for '{name}' is not hashable",
                    required="strings, numbers, tuples, or other hashable values",
                ) from None
            if missing:
                raise HierarchyIndexError(
                    f"{self.here}: {'token' if per_token else 'row'} {place} has no label for '{name}': {label!r}",
                    required=f"every unmasked element lies over exactly one {name}",
                )
        return codes, tuple(numbers), not per_token

    def _row_names(self, given: Any) -> tuple[Hashable, ...]:
        if given is None:
            return tuple(int(r) for r in self.row_numbers)
        codes, names, by_row = self._encode(self.rows, given)
        if not by_row or len(names) != len(self.row_numbers):
            twice = next((names[c] for i, c in enumerate(codes) if c in codes[:i]), "?")
            raise HierarchyIndexError(
                f"{self.here}: two rows are called {twice!r}", required=f"one name per {self.rows}, as every row is one"
            )
        return names

    def _parent(
        self, source: str, target: str, above: Codes, below: Codes, size: int, names: Mapping[str, tuple[Hashable, ...]]
    ) -> Codes:
        parent = np.empty(size, np.int64)
        parent[above] = below
        wrong = np.flatnonzero(parent[above] != below)
        if len(wrong):
            element, other = above[wrong[0]], below[wrong[0]]
            label = names[source][element] if source in names else element
            raise HierarchyIndexError(
                f"{self.here}: {source} {label!r} lies over two elements of {target}",
                required=f"every {source} lies over exactly one {target}",
                found=f"{names[target][parent[element]]!r} and {names[target][other]!r}",
                remedy=f"make the label unique, for example the pair ({target}, {source})"
                if source != self.leaf and target != self.rows
                else f"labels hold for the whole batch: make them unique, for example row * 1000 + {source}",
            )
        return parent

    def _attribute(
        self,
        attribute: Attribute,
        given: Mapping[str, Any],
        size: Mapping[str, int],
        names: Mapping[str, tuple[Hashable, ...]],
    ) -> NDArray[np.float64]:
        stratum, what = attribute.on.name, f"{self.here}: attribute '{attribute.name}'"
        if attribute.name not in given:
            raise HierarchyIndexError(
                f"{what} is not given", required=f"attributes={{'{attribute.name}': one number per {stratum}}}"
            )
        value = given[attribute.name]
        if isinstance(value, Mapping):
            lacking = [n for n in names.get(stratum, ()) if n not in value]
            if lacking or stratum not in names:
                raise HierarchyIndexError(
                    f"{what} has no value for {stratum} {lacking[:1]}", required=f"a value for every {stratum}"
                )
            array = _numbers([value[n] for n in names[stratum]], what)
        else:
            array = _numbers(_to_numpy(value, what), what)
            if stratum == self.leaf and array.shape == self.shape:
                array = array.reshape(-1)[self.positions]
            elif stratum == self.rows and array.shape == (self.n_rows,):
                array = array[self.row_numbers]
            elif array.ndim == 0:
                array = np.full(size[stratum], float(array))
            elif array.shape != (size[stratum],):
                raise HierarchyIndexError(
                    f"{what} has shape {list(array.shape)}", required=f"one number per {stratum}: [{size[stratum]}]"
                )
        bad = ~np.isfinite(array) | ((array <= 0) if attribute.positive else False)
        if bad.any():
            i = int(np.argmax(bad))
            label = names[stratum][i] if stratum in names else i
            raise HierarchyIndexError(
                f"{what} of {stratum} {label!r} is {array[i]:g}",
                required="a finite number" + (" above 0" if attribute.positive else ""),
                remedy="positivity is an assumption of the proofs; declare positive=False to drop it"
                if attribute.positive
                else "",
            )
        return array


def _to_numpy(value: Any, what: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # type: ignore[no-any-return]
    try:
        return np.asarray(value)
    except ValueError:
        raise HierarchyIndexError(
            f"{what}: rows of several lengths", required="rows of one length, or offsets"
        ) from None


def _plain(label: Any) -> Any:
    """A label that equals its equals: a tensor hashes by identity, so a 0-d one is read and any other is no label."""
    if isinstance(label, (Tensor, np.ndarray)):
        return label.item() if label.ndim == 0 else label.tolist()
    return label


def _to_list(value: Any) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    return value


def _numbers(values: Any, what: str) -> NDArray[np.float64]:
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError):
        raise HierarchyIndexError(f"{what} holds values that are no numbers", required="numbers") from None
