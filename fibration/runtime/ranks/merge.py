"""The shards of all ranks → the whole batch, computed by each rank.

All ranks have the same shards, so all find the same errors, in the same words. Labels meet by canonical bytes, which
are equal in every process, as Python's `hash` of a string is not. Equal labels have the same ones: `1`, `True`, `1.0`
and `np.int64(1)` are one label, and `"1"` is another, as in a dictionary. Labels that are equal only to themselves, in
one process, have none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fibration.compiler.spread import TOKENS as MOST
from fibration.errors import HierarchyIndexError, an, listed, shown
from fibration.language.atoms import BATCH
from fibration.runtime.sums import Codes, Sums, Vector

Edge = tuple[str, str]
NOWHERE, STRADDLES = -1, -2  # in place of an element: none, and several


@dataclass(frozen=True)
class Shard:
    """One rank's part of a batch, without its tokens. Elements have this rank's numbers."""

    rows: str  # the stratum of the rows
    n_rows: int  # rows of the tensors, empty ones included
    cut: bool  # whether one row spans several tensor rows
    tokens: Mapping[str, int]  # per leaf
    labels: Mapping[str, Sequence[Hashable]]  # per labelled stratum, and of the rows
    keys: Mapping[str, Sequence[bytes]]  # canonical bytes of the caller's labels
    kinds: Mapping[str, str]  # "row" or "token": whether labels were given per row or per token, if it matters
    parents: Mapping[Edge, Codes]  # between coarser strata; NOWHERE if no token here tells
    counts: Mapping[Edge, Codes]  # tokens of each element directly under a leaf
    values: Mapping[tuple[str, str], Vector]  # by attribute and stratum
    sums: Mapping[tuple[str, str], Sums]  # by attribute of a leaf, and a stratum directly under that leaf
    inside: Mapping[str, Codes]  # the row of an element's tokens, or STRADDLES
    covered: NDArray[np.bool_]  # whether a row has tokens that lie over rows
    first: Mapping[str, Codes]  # of coarser strata whose order is read: the sort key of an element's first token


class WholeBatch:
    """The whole batch, with one numbering of its elements.

    Elements are numbered by first appearance, rank after rank. If rows have keys, they are numbered by the bytes of
    their labels, so that the distribution over ranks does not matter. Raises HierarchyIndexError naming two ranks that
    disagree.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.rows = shards[0].rows
        self.keyed = self.rows in shards[0].keys
        if not any(n for p in shards for n in p.tokens.values()):
            raise HierarchyIndexError(
                "the batch is empty",
                required="at least one unmasked token on some rank",
                found=f"nothing unmasked on any of {len(shards)} ranks",
                remedy="skip the update for this batch",
            )
        self._same_kinds()
        self.numbers: dict[str, list[Codes]] = {}  # per stratum and rank: the global number of each of its elements
        self.labels: dict[str, tuple[Hashable, ...]] = {}
        for stratum in shards[0].labels:
            self.labels[stratum], number = self._labels(stratum)
            self.numbers[stratum] = np.split(number, np.cumsum([len(p.labels[stratum]) for p in shards])[:-1])
        self.parents = {edge: self._parents(*edge) for edge in shards[0].parents}
        self.values = {name: self._values(name, stratum) for name, stratum in shards[0].values}
        self.tokens = {leaf: sum(p.tokens[leaf] for p in shards) for leaf in shards[0].tokens}
        self.counts = {edge: self._counts(edge) for edge in shards[0].counts}
        self.sums = {key: self._sums(*key) for key in shards[0].sums}
        self.inside = {stratum: self._inside(stratum) for stratum in shards[0].inside}
        self.covered = np.zeros(self.size(self.rows), np.bool_)
        for number, p in zip(self.numbers[self.rows], shards, strict=True):
            self.covered[number] |= p.covered
        several = sum(map(len, self.numbers[self.rows])) > self.size(self.rows)
        self.cut = several or any(p.cut for p in shards)
        self.first = {of: self._first(of) for of in shards[0].first}

    def size(self, stratum: str) -> int:
        return len(self.labels[stratum])

    def _same_kinds(self) -> None:
        for stratum in dict.fromkeys(s for p in self.shards for s in p.kinds):
            kinds = {p.kinds[stratum]: rank for rank, p in enumerate(self.shards) if stratum in p.kinds}
            if len(kinds) > 1:
                found = (f"one per {kind} on rank {rank}" for kind, rank in sorted(kinds.items()))
                raise HierarchyIndexError(
                    f"ranks give labels for '{stratum}' of different kinds",
                    required="one per row on every rank, or one per token",
                    found=listed(found),
                    remedy=f"give {stratum}= in the shape of the tokens on every rank",
                )

    # ------------------------------------------------------------ labels

    def _labels(self, stratum: str) -> tuple[tuple[Hashable, ...], Codes]:
        """The labels of the whole batch, and the number of each label of each rank, rank after rank."""
        names = [label for p in self.shards for label in p.labels[stratum]]
        if stratum not in self.shards[0].keys:  # rows without keys are named by number
            before = np.cumsum([0, *(p.n_rows for p in self.shards)])
            rows = (n + int(b) for b, p in zip(before, self.shards, strict=False) for n in p.labels[stratum])  # type: ignore[operator]
            return tuple(rows), np.arange(len(names))
        first: dict[bytes, int] = {}
        found = [key for p in self.shards for key in p.keys[stratum]]
        for i, key in enumerate(found):
            first.setdefault(key, i)
        order = sorted(first) if self.keyed else list(first)
        number = {key: i for i, key in enumerate(order)}
        return tuple(names[first[key]] for key in order), np.array([number[key] for key in found], np.int64)

    def _name(self, stratum: str, rank: int, element: int) -> str:
        """An element as its rank names it."""
        label = self.shards[rank].labels[stratum][element]
        return f"{label!r} on rank {rank}" if stratum in self.shards[0].keys else f"row {label!r} of rank {rank}"

    # ------------------------------------------------------------ values that must agree

    def _agreed(
        self, stratum: str, said: Sequence[NDArray], known: NDArray, refuse: Callable[[int, int, int], Exception]
    ) -> NDArray:
        """Fill `known` from `said[rank]`, one number per element of each rank; NOWHERE and NaN mean no value.

        `refuse(element, rank, rank)` makes the error if two ranks disagree.
        """
        origin = np.full(len(known), -1)
        for rank, mine in enumerate(said):
            tells = ~np.isnan(mine) if known.dtype.kind == "f" else mine != NOWHERE
            element, mine = self.numbers[stratum][rank][tells], mine[tells]
            wrong = np.flatnonzero((origin[element] >= 0) & (known[element] != mine))
            if len(wrong):
                there = int(element[wrong[0]])
                raise refuse(there, int(origin[there]), rank)
            known[element], origin[element] = mine, rank
        return known

    def _own(self, stratum: str, rank: int, element: int) -> int:
        """The number of an element on a rank."""
        return int(np.flatnonzero(self.numbers[stratum][rank] == element)[0])

    def _parents(self, source: str, target: str) -> Codes:
        def refuse(element: int, one: int, other: int) -> HierarchyIndexError:
            found = []
            for rank in (one, other):
                below = self.shards[rank].parents[source, target][self._own(source, rank, element)]
                found.append(self._name(target, rank, int(below)))
            if source == self.rows:
                remedy = f"give all pieces of one {source} the same {target}, or different {source}s different keys"
            else:
                remedy = f"labels are unique in the whole batch: use for example the pair ({target}, {source})"
            return HierarchyIndexError(
                f"{source} {self.labels[source][element]!r} lies over two elements of {target}",
                required=f"every {source} lies over exactly one {target}, on all ranks together",
                found=listed(found),
                remedy=remedy,
            )

        said = []
        for p, below in zip(self.shards, self.numbers[target], strict=True):
            mine = p.parents[source, target]
            said.append(np.where(mine == NOWHERE, NOWHERE, np.append(below, NOWHERE)[mine]))
        return self._agreed(source, said, np.full(self.size(source), NOWHERE), refuse)

    def _values(self, name: str, stratum: str) -> Vector:
        said = [p.values[name, stratum] for p in self.shards]

        def refuse(element: int, one: int, other: int) -> HierarchyIndexError:
            found = (f"{said[rank][self._own(stratum, rank, element)]:.17g} on rank {rank}" for rank in (one, other))
            return HierarchyIndexError(
                f"attribute '{name}' of {stratum} {self.labels[stratum][element]!r} has two values",
                required=f"one number for {an(stratum)} on all ranks",
                found=listed(found),
            )

        return self._agreed(stratum, said, np.full(self.size(stratum), np.nan), refuse)

    # ------------------------------------------------------------ order

    def several(self, over: str) -> NDArray[np.bool_]:
        """Whether several ranks have tokens of each element: bool [elements]."""
        holders = np.zeros(self.size(over), np.int64)
        for rank in range(len(self.shards)):
            holders[self.elements_on(over, rank)] += 1
        return holders > 1

    def elements_on(self, stratum: str, rank: int) -> Codes:
        """The elements of which a rank has tokens. A rank without tokens has no elements, not even the batch."""
        numbers = self.numbers[stratum][rank]
        return numbers if any(self.shards[rank].tokens.values()) else numbers[:0]

    def words(self, stratum: str) -> Callable[[int], str]:
        """A function that describes an element in words."""
        names = self.labels[stratum]
        return lambda element: "the batch" if stratum == BATCH else f"{stratum} {names[element]!r}"

    def _first(self, of: str) -> Codes:
        first = np.full(self.size(of), np.iinfo(np.int64).max)
        for p, number in zip(self.shards, self.numbers[of], strict=True):
            first[number] = np.minimum(first[number], p.first[of])
        return first

    # ------------------------------------------------------------ sums

    def _counts(self, edge: Edge) -> Codes:
        total = np.zeros(self.size(edge[1]), np.int64)
        for p, number in zip(self.shards, self.numbers[edge[1]], strict=True):
            total[number] += p.counts[edge]
        return total

    def _sums(self, name: str, target: str) -> Sums:
        size = self.size(target)
        total = Sums(size, {})
        for p, number in zip(self.shards, self.numbers[target], strict=True):
            total = total.plus(p.sums[name, target].over(number, size))
        return total

    def refuse_many(self, edge: Edge) -> None:
        """Refuse more tokens of one element on one rank than sums add exactly."""
        for rank, p in enumerate(self.shards):
            counts = p.counts[edge]
            if counts.max(initial=0) > MOST:
                element = int(np.argmax(counts))
                raise HierarchyIndexError(
                    f"rank {rank} has {counts[element]} tokens of {edge[1]} {p.labels[edge[1]][element]!r}",
                    required=f"at most {MOST} on one rank, if an element may have tokens on several ranks: larger sums "
                    "are not exact",
                    remedy="spread them over more ranks",
                )

    def _inside(self, stratum: str) -> Codes:
        """The row of each element's tokens, or STRADDLES."""
        inside = np.full(self.size(stratum), NOWHERE)
        for p, number, rows in zip(self.shards, self.numbers[stratum], self.numbers[self.rows], strict=True):
            mine = p.inside[stratum]
            mine = np.where(mine == STRADDLES, STRADDLES, np.append(rows, NOWHERE)[mine])
            inside[number] = np.where((inside[number] == NOWHERE) | (inside[number] == mine), mine, STRADDLES)
        return inside


# ---------------------------------------------------------------- labels

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
REQUIRED = "labels that mean the same in every process: numbers, text, bytes, dates, UUIDs, enums, tuples of them"


def keys_of(stratum: str, labels: Sequence[Hashable]) -> list[bytes]:
    """The canonical bytes of every label. Raises HierarchyIndexError for a label without them."""
    try:
        return list(map(canonical, labels))
    except _Unknown as error:
        raise HierarchyIndexError(
            f"the label {shown(error.args[0])} for '{stratum}' has no meaning on other ranks",
            required=REQUIRED,
            found=error.args[1],
            remedy="give it a name, for example its number in the dataset or str(label)",
        ) from None


def canonical(label: Any) -> bytes:
    """The same bytes for equal labels, and different bytes for others."""
    kind = type(label)
    if kind not in _FOUND:
        _FOUND[kind] = _writer(kind)
    write = _FOUND[kind]
    if write is None:
        raise _Unknown(label, f"an object of {kind.__qualname__}")
    return write(label)


class _Unknown(Exception):
    """A label without canonical bytes, and the reason."""


def _number(value: Any) -> bytes:
    if value.imag:
        return b"c" + _joined([_number(value.real), _number(value.imag)])
    try:
        above, below = value.real.as_integer_ratio()
    except OverflowError:
        return b"n+inf" if value.real > 0 else b"n-inf"
    except ValueError:
        raise _Unknown(value, "a number that does not equal itself") from None
    return b"n%x" % above if below == 1 else b"n%x/%x" % (above, below)


def _moment(value: datetime) -> bytes:
    value = value.replace(fold=0)  # as in Python's hash
    if value.utcoffset() is None:
        return b"t" + value.replace(tzinfo=None).isoformat().encode()
    return b"z%d" % ((value - EPOCH) // timedelta(microseconds=1))


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    str: lambda value: b"s" + value.encode("utf-8", "surrogatepass"),
    int: lambda value: b"n%x" % value,
    float: _number,
    complex: _number,
    Fraction: _number,
    Decimal: _number,
    bytes: lambda value: b"b" + value,
    tuple: lambda value: b"(" + _joined(map(canonical, value)),
    frozenset: lambda value: b"{" + _joined(sorted(map(canonical, value))),
    UUID: lambda value: b"u" + value.bytes,
    datetime: _moment,
    date: lambda value: b"d" + value.isoformat().encode(),
    type(None): lambda value: b"0",
}
_FOUND: dict[type, Callable[[Any], bytes] | None] = dict(_WRITERS)


def _writer(kind: type) -> Callable[[Any], bytes] | None:
    """The function that writes labels of a type, by the type's own equality: a `StrEnum` is a string, an `Enum` is
    not.
    """
    for known, write in _WRITERS.items():
        if issubclass(kind, known) and (kind.__eq__, kind.__hash__) == (known.__eq__, known.__hash__):
            return write
    if issubclass(kind, Enum) and (kind.__eq__, kind.__hash__) == (object.__eq__, Enum.__hash__):
        called = _joined([kind.__module__.encode(), kind.__qualname__.encode()])
        return lambda value: b"e" + called + (value.name or repr(value.value)).encode()  # flags of none
    if issubclass(kind, np.str_ | np.bytes_ | np.bool_ | np.integer | np.floating | np.complexfloating):
        return _number if issubclass(kind, np.inexact) else lambda value: canonical(value.item())
    return None
