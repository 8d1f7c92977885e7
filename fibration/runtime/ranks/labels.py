"""Hashes of labels that are equal in every process, as Python's `hash` of a string is not.

Equal labels have the same canonical bytes: `1`, `True`, `1.0` and `np.int64(1)` are one label, and `"1"` is another,
as in a dictionary. Labels that are equal only to themselves, in one process, have no canonical bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fibration.errors import HierarchyIndexError, shown

Digests = NDArray[np.uint64]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
REQUIRED = "labels that mean the same in every process: numbers, text, bytes, dates, UUIDs, enums, tuples of them"


def digests(stratum: str, labels: Sequence[Hashable]) -> Digests:
    """One hash per distinct label. Raises HierarchyIndexError for a label without a hash, and for two with the same
    hash.
    """
    try:
        found = np.frombuffer(b"".join([digest(canonical(label)) for label in labels]), ">u8").astype(np.uint64)
    except _Unknown as error:
        raise HierarchyIndexError(
            f"the label {shown(error.args[0])} for '{stratum}' has no meaning on other ranks",
            required=REQUIRED,
            found=error.args[1],
            remedy="give it a name, for example its number in the dataset or str(label)",
        ) from None
    order = np.argsort(found, kind="stable")
    same = np.flatnonzero(found[order][1:] == found[order][:-1])
    if len(same):
        raise collision(stratum, *(shown(labels[order[same[0] + k]]) for k in (0, 1)))
    return found


def collision(stratum: str, one: str, other: str) -> HierarchyIndexError:
    return HierarchyIndexError(
        f"two labels of '{stratum}' have the same 64-bit hash: {one} and {other}",
        required="labels with different hashes, because ranks compare hashes",
        remedy="rename one of them",
    )


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


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
        return b"n+inf" if value > 0 else b"n-inf"
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
        return lambda value: b"e" + called + value.name.encode()
    if issubclass(kind, np.str_ | np.bytes_ | np.bool_ | np.integer | np.floating | np.complexfloating):
        return _number if issubclass(kind, np.inexact) else lambda value: canonical(value.item())
    return None
