"""Checks the assumptions of a hierarchy on one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fibration.compiler import ir
from fibration.compiler.interpret import value_of
from fibration.compiler.scalars import to_scalar
from fibration.errors import HierarchyIndexError, SpecError, an
from fibration.language.atoms import BATCH, Attribute, Component, Count, Parameter, Stratum, Total, read_at
from fibration.language.expressions import Expression
from fibration.language.strata import Balanced, Populated
from fibration.language.traversal import desugar
from fibration.runtime.index.index import Index, Summed
from fibration.runtime.ranks.group import agreed
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


# ---------------------------------------------------------------- the measure


class Measure:
    """`m` of every element, from the kernels on this batch. A coarse element has the sum over it.

    `reader` names what needs the measure, for errors. Raises SpecError if a kernel reads a parameter, which has no
    value when an index is built. Raises HierarchyIndexError if the mass of a leaf element is negative or not finite.
    """

    def __init__(self, index: Index, reader: str) -> None:
        self.index, self.reader = index, reader
        self._known: dict[str, Vector] = {}
        self._added: dict[str, Summed] = {}
        with agreed(index.group, f"masses of '{index.hierarchy.name}'"):
            self.of_leaf = {leaf: self._leaf(Stratum(leaf)) for leaf in index.leaves}

    def of(self, stratum: str) -> Vector:
        """float64 [elements]."""
        if stratum not in self._known:
            self._known[stratum] = self.of_leaf[stratum] if stratum in self.of_leaf else self._summed(stratum)
        return self._known[stratum]

    def _summed(self, stratum: str) -> Vector:
        total = np.zeros(self.index.size[stratum])
        for leaf in self.index.leaves_over(stratum):
            total += self._sums(leaf).over(stratum).values()
        return total

    def _sums(self, leaf: str) -> Summed:
        if leaf not in self._added:
            self._added[leaf] = Summed(self.index, leaf, self.of_leaf[leaf])
        return self._added[leaf]

    def under(self, source: str, stratum: str) -> NDArray[np.int64]:
        """The `stratum` element of every element of `source`: int64 [source]."""
        return self.index.parent(source, stratum).cpu().numpy()  # type: ignore[no-any-return]

    def _leaf(self, leaf: Stratum) -> Vector:
        read: list[Expression] = []

        def argument(atom: Expression) -> ir.Scalar:
            read.append(atom)
            return ir.arg(len(read) - 1)

        body = to_scalar(desugar(self.index.hierarchy.masses[leaf]), argument)
        with np.errstate(all="ignore"):  # both branches of a where are computed; results are checked below
            values = value_of(body, lambda i: self._atom(read[i], leaf.name))
        result = np.array(np.broadcast_to(values, (self.index.size[leaf.name],)), np.float64)
        wrong = ~(np.isfinite(result) & (result >= 0))
        if wrong.any():
            i = int(np.argmax(wrong))
            raise HierarchyIndexError(
                f"index of '{self.index.hierarchy.name}': the kernels give "
                f"{self.index.describe_element(leaf.name, i)} the mass {result[i]:g}",
                required=f"finite masses, not negative: {self.reader} weighs tokens by them",
                found=f"m = {self.index.hierarchy.masses[leaf]}",
            )
        return result

    def _atom(self, atom: Expression, leaf: str) -> Vector:
        place = read_at(atom)
        if place is None or not isinstance(atom, (Count, Total, Attribute)):
            parameter = isinstance(atom, (Parameter, Component))
            raise SpecError(
                f"hierarchy '{self.index.hierarchy.name}': {self.reader} needs the masses of a batch, and a kernel "
                f"reads {'the parameter ' if parameter else ''}'{atom}'",
                required="kernels of numbers, counts, totals and attributes: an index is built before parameters have "
                "values",
                remedy="make it an Attribute, or drop the assumption" if parameter else "",
            )
        if isinstance(atom, Count):
            values = self.index.count(atom.of.name, place.name)
        else:
            values = self.index.total(atom if isinstance(atom, Attribute) else atom.attribute, place.name)
        return values.cpu().numpy()[self.under(leaf, place.name)]  # type: ignore[no-any-return]
