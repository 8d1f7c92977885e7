"""Checks the assumptions of a hierarchy on one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fibration.errors import HierarchyIndexError, an
from fibration.language.atoms import BATCH
from fibration.language.strata import Balanced, Populated
from fibration.runtime.index.index import Index
from fibration.runtime.index.mass_on_batch import Measure
from fibration.runtime.sums import Codes, Vector

TOLERANCE = 1e-9  # relative, of products of masses
CHUNK = 1 << 22  # cells checked at a time


def check(index: Index) -> None:
    """Refuse a batch that breaks an assumption of the proofs. HierarchyIndexError names the element."""
    h = index.hierarchy
    for assumption in h.assume:
        if isinstance(assumption, Populated):
            _populated(index, assumption)
        else:
            _balanced(index, assumption)
    for of, over in h.others:
        if (error := _alone(index, of, over)) is not None:
            raise error


def alone_with_rewards(index: Index) -> HierarchyIndexError | None:
    """The error for an element without others, if advantages take the mean of the others; None if there is none."""
    errors = (_alone(index, of, over) for of, over in index.hierarchy.others_rewarded)
    return next((error for error in errors if error is not None), None)


# ---------------------------------------------------------------- assumptions


def _populated(index: Index, assumption: Populated) -> None:
    of, over = assumption.stratum.name, assumption.over.name
    empty = (index.count(of, over) == 0).nonzero()
    if len(empty):
        where = index.describe_element(over, int(empty[0]))
        raise HierarchyIndexError(
            f"index of '{index.hierarchy.name}': {where} has no {of}",
            required=f"at least one: {assumption!r} is assumed",
            found=f"{len(empty)} of {index.size[over]} {over} element{'s'[: index.size[over] > 1]} without {an(of)}",
            remedy=f"drop it from the batch, or drop {assumption!r} from assume=[...]; counts of {of} may then be 0",
        )


def _alone(index: Index, of: str, over: str) -> HierarchyIndexError | None:
    """The error for an element without others, if a formula takes the mean of the others; None if there is none."""
    alone = (index.count(of, over) == 1).nonzero()
    if not len(alone):
        return None
    element = int(alone[0])
    one = int((index.parent(of, over) == element).nonzero()[0])
    return HierarchyIndexError(
        f"index of '{index.hierarchy.name}': {index.describe_element(over, element)} has only one {of}: "
        f"{index.describe_element(of, one)}",
        required="at least two, because a formula takes the mean of the others: of=..., others=True",
        found=f"{len(alone)} of {index.size[over]} {over} element{'s'[: index.size[over] > 1]} with only one {of}",
        remedy="drop it from the batch, or write the formula without others=True and leave_one_out=True",
    )


@dataclass(frozen=True)
class _Cell:
    """The cell that is furthest from balance; `share` is its deviation relative to the common coarser element."""

    share: float
    elements: tuple[int, int, int]
    mass: float
    balanced: float


def _balanced(index: Index, assumption: Balanced) -> None:
    """Check `m(a∩b)·m(c) = m(a)·m(b)` for all `a`, `b` over each element `c` of a meet; over the batch if there is no
    meet.
    """
    a, b = assumption.first, assumption.second
    measure = Measure(index, repr(assumption))
    for meet in [s.name for s in index.hierarchy.shape.meets(a, b)] or [BATCH]:
        crossing = _Crossing(index, measure, a.name, b.name, meet)
        worst = crossing.worst()
        if worst is None:
            continue
        i, j, k = worst.elements
        over = "" if meet == BATCH else f", over {index.describe_element(meet, k)}"
        leak, one, other = crossing.leakage()
        raise HierarchyIndexError(
            f"index of '{index.hierarchy.name}': {assumption!r} is assumed, and this batch is not balanced",
            required=f"m({a.name}∩{b.name})·m({meet}) = m({a.name})·m({b.name}) for every cell, empty ones too",
            found=f"{index.describe_element(a.name, i)} and {index.describe_element(b.name, j)} share the mass "
            f"{worst.mass:g}, and balance requires {worst.balanced:g}{over}; the residuals of {other}, averaged over "
            f"{one}, reach {leak:.3g} for log ratios within ±1, instead of 0",
            remedy=f"declare the cells ({a.name}, {b.name}) as a stratum and a chain through it, or "
            'orthogonalise="projection"',
        )


class _Crossing:
    """The cells of two strata over the elements of a third."""

    def __init__(self, index: Index, measure: Measure, a: str, b: str, meet: str) -> None:
        self.index, self.a, self.b = index, a, b
        self.mass_a, self.mass_b, self.mass = measure.of(a), measure.of(b), measure.of(meet)
        self.over_a, self.over_b = (index.parent(s, meet).cpu().numpy() for s in (a, b))
        leaves = [leaf for leaf in index.leaves_over(a) if leaf in index.leaves_over(b)]
        tokens = [measure.under(leaf, a) * index.size[b] + measure.under(leaf, b) for leaf in leaves]
        self.keys = index.occurring(np.concatenate([np.zeros(0, np.int64), *tokens]))
        self.filled = np.zeros(len(self.keys))
        for leaf, keys in zip(leaves, tokens, strict=True):
            cells = np.searchsorted(self.keys, keys)
            self.filled += index.added(leaf, cells, measure.of_leaf[leaf], len(self.keys)).values()
        self.row_leak, self.column_leak = np.zeros(index.size[a]), np.zeros(index.size[b])

    def _cells(self) -> Iterator[tuple[Codes, Codes, Vector]]:
        """All pairs over a common element, with the mass of their cell, in chunks of rows."""
        per_meet = np.bincount(self.over_b, minlength=len(self.mass))
        by_meet, before = np.argsort(self.over_b, kind="stable"), np.cumsum(per_meet) - per_meet
        width = per_meet[self.over_a]
        chunk = np.cumsum(width) // CHUNK
        for part in np.split(np.arange(len(width)), np.flatnonzero(np.diff(chunk)) + 1):
            i = np.repeat(part, width[part])
            step = np.arange(len(i)) - np.repeat(np.cumsum(width[part]) - width[part], width[part])
            j = by_meet[before[self.over_a[i]] + step]
            key = i * len(self.over_b) + j
            at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
            yield i, j, np.where(self.keys[at] == key, self.filled[at], 0.0) if len(self.keys) else np.zeros(len(i))

    def worst(self) -> _Cell | None:
        """The cell furthest from balance; None if all are balanced."""
        found: _Cell | None = None
        for i, j, cell in self._cells():
            k = self.over_a[i]
            total, row, column = self.mass[k], self.mass_a[i], self.mass_b[j]
            given, asked = cell * total, row * column
            with np.errstate(all="ignore"):
                share = np.abs(_quotient(given - asked, total * total))
                self.row_leak += _sums(i, np.abs(_quotient(cell, row) - _quotient(column, total)), self.row_leak)
                self.column_leak += _sums(j, np.abs(_quotient(cell, column) - _quotient(row, total)), self.column_leak)
            share[np.abs(given - asked) <= TOLERANCE * np.maximum(given, asked)] = 0
            if not share.any():
                continue
            furthest = np.flatnonzero(share >= share.max() * (1 - TOLERANCE))  # all four of two by two cells
            at = int(furthest[np.argmin(given[furthest] / asked[furthest])])  # the one that lacks most mass
            if found is None or share[at] > found.share * (1 + TOLERANCE):
                where = (int(i[at]), int(j[at]), int(k[at]))
                found = _Cell(float(share[at]), where, float(cell[at]), float(asked[at] / total[at]))
        return found

    def leakage(self) -> tuple[float, str, str]:
        """The largest mean that residuals of one stratum can have over an element of the other.

        `P_a (s_b - s_c)` is `Σ_b (m(a∩b)/m(a) - m(b)/m(c))·s_b`. For `|s_b| ≤ 1` its bound is the sum of the absolute
        values, 0 if the crossing is balanced. Returns the bound, the element in words, and the other stratum's name.
        """
        rows, columns = (float(leak.max(initial=0)) for leak in (self.row_leak, self.column_leak))
        if rows >= columns:
            return rows, self.index.describe_element(self.a, int(np.argmax(self.row_leak))), self.b
        return columns, self.index.describe_element(self.b, int(np.argmax(self.column_leak))), self.a


def _quotient(a: Vector, b: Vector) -> Vector:
    """`a / b`, 0 where there is no mass."""
    return np.where(b > 0, a / b, 0.0)


def _sums(at: Codes, values: Vector, like: Vector) -> Vector:
    found: Vector = np.bincount(at, weights=values, minlength=len(like)).astype(np.float64)
    return found
