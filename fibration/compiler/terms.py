"""Weighted sums of terms over tokens, for objectives and penalties.

A term is pushed to its row first, so that no partial sum runs over the whole batch of tokens.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence

from fibration.compiler import ir
from fibration.compiler.derivative import ONE, ZERO
from fibration.compiler.formulas import Each, Formulas, added
from fibration.compiler.ir import Detach, Map, Node, Push, binary
from fibration.language.atoms import BATCH, Count, Total
from fibration.language.expressions import Expression
from fibration.language.objectives import Objective
from fibration.language.places import row_path, way
from fibration.language.traversal import atoms


def where_kept(kept: Node | None, node: Node) -> Node:
    """`node` where `kept` is above 0, else 0; `node` itself without `kept`."""
    if kept is None:
        return node
    return Map(ir.scalar("select", ir.scalar("lt", ZERO, ir.arg(0)), ir.arg(1), ZERO), (kept, node))


class Terms(Formulas):
    """Sums of terms over the tokens of a batch, weighted by the `μ` of an objective."""

    def summed(self, objective: Objective, terms: Mapping[str, Node]) -> Node:
        """`Σ μ·term` over the tokens of every leaf."""
        sums = [ir.reduce(term, row_path(self.h, leaf)) for leaf, term in terms.items()]
        return Push(self.rows, BATCH, binary("mul", self.normaliser(objective), added(sums)))

    def conditions(self, leaf: str, conditions: Sequence[Expression]) -> Node:
        """1 at the tokens of a leaf where all of the conditions hold, else 0."""
        return self.tokens(functools.reduce(operator.and_, conditions), leaf)

    def normaliser(self, objective: Objective) -> Node:
        """`μ` of every row, from counts of all elements, or of kept tokens and of elements with a kept token.

        In counts of kept tokens, `μ` is 0 for a row without a kept token.
        """
        weight = objective.spelled_out(self.h.leaves, self.h.rows)
        conditions = [k.condition for k in objective.kept if k.normaliser == "kept"]
        if not conditions:
            return self.map(weight, self.rows)

        def tokens(leaf: str) -> Node:
            return self.conditions(leaf, conditions)

        def count(stratum: str) -> Node:
            each = [Each(leaf, tokens(leaf)) for leaf in self.leaves_over(stratum)]
            return self.reduce(each, stratum, wide=False)

        def has(stratum: str) -> Node:
            if stratum in self.leaves:
                return tokens(stratum)
            return Map(ir.scalar("select", ir.scalar("lt", ir.const(0), ir.arg(0)), ONE, ZERO), (count(stratum),))

        bound: dict[Expression, Node] = {}
        for atom in atoms(weight):
            if not isinstance(atom, (Count, Total)):
                continue
            of, over = str(atom.of), str(atom.over)
            counted = has(of)
            if isinstance(atom, Total):
                counted = binary("mul", counted, self.atom(atom.attribute, of))
            for source, target in itertools.pairwise(way(self.h, of, over)):
                counted = self.pushed(source, target, counted)
            bound[atom] = Detach(counted)
        return where_kept(count(self.rows), self.map(weight, self.rows, bound))
