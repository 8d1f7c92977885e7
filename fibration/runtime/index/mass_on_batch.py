"""The leaf measure `m` on one batch, in float64: `K(a|b) = m(a)/m(b)`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fibration.compiler import ir
from fibration.compiler.interpret import value_of
from fibration.compiler.scalars import to_scalar
from fibration.errors import HierarchyIndexError, SpecError
from fibration.language.atoms import Attribute, Component, Count, Parameter, Stratum, Total, read_at
from fibration.language.expressions import Expression
from fibration.language.traversal import desugar
from fibration.runtime.index.index import Index, Summed
from fibration.runtime.ranks.agreement import agreed
from fibration.runtime.sums import Vector


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
