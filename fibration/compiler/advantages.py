"""Programs that compute advantages from rewards. Other programs read the result like advantages from the caller.

One program is over tokens. The other is over rows, for a formula whose values are constant over a row. With it, a step
with one reward per row costs nothing per token.
"""

from __future__ import annotations

from fibration.compiler import ir
from fibration.compiler.diagnostics import lost, nothing
from fibration.compiler.formulas import Each, Formulas, added
from fibration.compiler.ir import Input, Key, Map, Node, Push
from fibration.compiler.program import Program
from fibration.compiler.scalars import ZERO
from fibration.language.atoms import BATCH, Stratum, at, reward
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import row_path
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms


def advantages(hierarchy: Hierarchy) -> dict[str, Program]:
    """The programs of a hierarchy's advantage formula, by name; empty if the hierarchy has none."""
    if hierarchy.advantages is None:
        return {}
    found = {"advantages": _Advantages(hierarchy, False).of_tokens(hierarchy.advantages)}
    by_row = _Advantages(hierarchy, True)
    if by_row.is_of_rows(hierarchy.advantages):
        found["advantages_of_rows"] = by_row.of_rows(hierarchy.advantages)
    return {name: program.validate() for name, program in found.items()}


class _Advantages(Formulas):
    """Lowers an advantage formula. `by_row`: a reward belongs to a row and is read there."""

    def __init__(self, hierarchy: Hierarchy, by_row: bool) -> None:
        super().__init__(hierarchy)
        self.by_row = by_row
        self.deviations: dict[Node, None] = {}

    # ------------------------------------------------------------ what formulas read

    def place(self, atom: Expression, stratum: str) -> str:
        return self.rows if self.by_row and atom == reward else super().place(atom, stratum)

    def atom(self, atom: Expression, stratum: str) -> Node:
        return self.reward() if self.by_row and atom == reward else super().atom(atom, stratum)

    def reward(self) -> Input:
        return Input("reward", self.rows, "reward")

    def is_exact(self, atom: Aggregate) -> bool:
        return True

    def each(self, atom: Aggregate, over: str) -> list[Each]:
        """The values of a statistic. A formula of coarser values is read at their stratum and counts once per token."""
        if atom.of is not None:
            return super().each(atom, over)
        found = []
        for leaf in self.leaves_over(over):
            written = at(atom.formula, self.strata[leaf])
            place = self.finest([self.place(a, leaf) for a in atoms(written)])
            if place in (None, leaf, BATCH) or not self.lies_over(str(place), over):
                found.append(Each(leaf, self.tokens(atom.formula, leaf)))
            else:
                found.append(Each(str(place), self.elements(written, str(place)), ir.count_input(leaf, str(place))))
        return found

    def lies_over(self, stratum: str, over: str) -> bool:
        return over in (stratum, *map(str, self.whole.coarser(Stratum(stratum))))

    def deviation(self, *given: object) -> Node:
        found = super().deviation(*given)  # type: ignore[arg-type]
        self.deviations[found] = None
        return found

    # ------------------------------------------------------------ programs

    def is_of_rows(self, formula: Expression) -> bool:
        """Whether all leaves have one formula, and everything in it is constant over a row."""
        written = {at(formula, leaf) for leaf in self.h.leaves}
        read = {self.place(a, leaf) for leaf in self.leaves for e in written for a in atoms(e)}
        return self.rows not in self.leaves and len(written) == 1 and all(self.lies_over(self.rows, s) for s in read)

    def of_rows(self, formula: Expression) -> Program:
        value = _where_finite(self.reward(), self.elements(at(formula, self.h.leaves[0]), self.rows))
        return self.program({Key("advantages"): value}, nothing(value))

    def of_tokens(self, formula: Expression) -> Program:
        found, sums = {}, []
        for leaf in self.leaves:
            reads = ir.token_input("reward", leaf, self.leaves)
            value = _where_finite(reads, self.tokens(formula, leaf))
            found[ir.part("advantages", leaf, self.leaves)] = value
            sums.append(ir.reduce(nothing(value), row_path(self.h, leaf)))
        return self.program(found, added(sums))

    def program(self, found: dict[Key, Node], marks: Node) -> Program:
        """The program of `found`, with the number of rows whose advantage is not finite, and the coarse deviations."""
        coarse = (node for node in self.deviations if node.stratum not in self.leaves)
        deviations = {Key(f"deviation_{i}", node.stratum): node for i, node in enumerate(coarse, 1)}
        outputs = {**found, Key("nonfinite"): Push(self.rows, BATCH, lost(marks)), **deviations}
        return Program(self.h.name, self.leaves, outputs, self.names)


def _where_finite(given: Node, node: Node) -> Node:
    """`node`, bit for bit, where `given` is finite, else NaN."""
    is_finite = ir.scalar("le", ir.scalar("sub", ir.arg(0), ir.arg(0)), ZERO)
    kept = ir.scalar("select", is_finite, ir.arg(1), ir.const(float("nan")))
    return Map(kept, (given, node))
