"""Lowers penalties to nodes: the values that are subtracted from the objective, and their terms at tokens.

Gradients flow through the sums and means of tokens that a penalty reads, unlike in weights and gates. The formula's own
map leaves out tokens that the penalty's objective drops, so that neither their value nor their slope is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fibration.compiler import ir
from fibration.compiler.derivative import ZERO
from fibration.compiler.ir import Detach, Map, Node, Scalar
from fibration.compiler.keys import Key
from fibration.compiler.terms import Terms
from fibration.language.atoms import BATCH, at
from fibration.language.objectives import Objective
from fibration.language.penalties import Penalty
from fibration.language.places import way
from fibration.language.statistics import Aggregate


@dataclass(frozen=True)
class Penalised:
    """`values` are the subtracted numbers, by penalty. `terms` are their terms at tokens, by penalty and leaf."""

    values: dict[str, Node] = field(default_factory=dict)
    terms: dict[tuple[str, str], Node] = field(default_factory=dict)


class Penalties(Terms):
    def maybe_detach(self, atom: Aggregate, found: Node) -> Node:
        return found if atom.kind in ("total", "mean") else Detach(found)

    def lower_penalties(self) -> Penalised:
        found = Penalised()
        for name, penalty in self.h.penalties.items():
            if penalty.over is None:
                objective = penalty.objective or self.h.objective.of_penalties
                terms: Mapping[str, Node] = {leaf: self.term(penalty, objective, leaf) for leaf in self.leaves}
                value = self.summed(objective, terms)
            else:
                value, terms = self.mean_over(str(penalty.over), penalty)
            self.names.setdefault(value, Key("penalty", name))
            found.values[name] = value
            found.terms.update({(name, leaf): term for leaf, term in terms.items()})
        return found

    def term(self, penalty: Penalty, objective: Objective, leaf: str) -> Node:
        """The formula times the weights at the tokens of a leaf, 0 at tokens that `keep` drops."""
        body, inputs = _opened(self.tokens(penalty.formula, leaf))
        for weight in objective.weighed:
            inputs = (*inputs, Detach(self.tokens(weight, leaf)))
            body = ir.scalar("mul", ir.arg(len(inputs) - 1), body)
        if objective.kept:
            inputs = (*inputs, Detach(self.conditions(leaf, [k.condition for k in objective.kept])))
            body = ir.scalar("select", ir.scalar("lt", ZERO, ir.arg(len(inputs) - 1)), body, ZERO)
        return inputs[0] if body is ir.arg(0) else Map(body, inputs)

    def mean_over(self, stratum: str, penalty: Penalty) -> tuple[Node, Mapping[str, Node]]:
        """The mean of a formula over the elements of a stratum, 0 without elements; and its values at tokens."""
        each = self.map(at(penalty.formula, penalty.over), stratum)
        terms = {}
        for leaf in self.leaves_over(stratum):
            terms[leaf] = ir.broadcast(each, way(self.h, leaf, stratum))
        if stratum == BATCH:
            return each, terms
        summed, some = ir.reduce(each, way(self.h, stratum, BATCH)), ir.count_input(stratum, BATCH)
        mean = ir.scalar("div", ir.arg(0), ir.arg(1))
        return Map(ir.scalar("select", ir.scalar("lt", ZERO, ir.arg(1)), mean, ZERO), (summed, some)), terms


def _opened(node: Node) -> tuple[Scalar, tuple[Node, ...]]:
    """A node as a body and its operands."""
    return (node.body, node.inputs) if isinstance(node, Map) else (ir.arg(0), (node,))
