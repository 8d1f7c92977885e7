"""Lowers the formulas of a hierarchy to nodes: one Map per formula, over the nodes of its atoms and statistics.

Weights, `keep` conditions and statistics read a token formula at a token; no gradient flows through it. A statistic is
pushed along the path of the objective's sum: tokens to rows to batch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fibration.compiler import ir
from fibration.compiler.ir import Const, Detach, Input, Key, Map, Node, Pull, Push, Quantile, Scalar, Scan, binary
from fibration.compiler.scalars import to_scalar
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Parameter,
    Reading,
    Stratum,
    Summary,
    Total,
    at,
    token_log_ratio,
)
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Apply, Expression
from fibration.language.gates import CHANNEL_WORD
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import where
from fibration.language.outline import home, way, whole_batch
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.traversal import atoms, desugar, evaluate, rewrite

NOW, BEFORE = LogProb(Policy(CURRENT)), LogProb(Policy(OLD))


class Formulas:
    """Nodes of one hierarchy. `density` holds the densities lowered so far, by stratum and channel."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.h, self.shape = hierarchy, hierarchy.shape
        self.order = hierarchy.order
        self.strata = {s.name: s for s in self.order}
        self.leaves = tuple(s.name for s in hierarchy.leaves)
        self.rows = hierarchy.rows.name
        self.whole = whole_batch(hierarchy)  # includes the rows and the groups
        self.groups = frozenset(map(str, hierarchy.groups))
        self.names: dict[Node, Key] = {}
        self.density: dict[tuple[str, str], Node] = {}

    def broadcast(self, node: Node, stratum: str) -> Node:
        """`node` at the elements of `stratum`: along the fibrations, from groups through the rows, else in one step."""
        here = node.stratum
        if here == stratum:
            return node
        if here in self.groups:
            return ir.broadcast(node, way(self.h, stratum, here))
        known = here in self.strata and stratum in self.strata and here != BATCH
        if not known or self.strata[here] not in self.shape.coarser(self.strata[stratum]):
            return Pull(stratum, here, node)
        path = self.shape.path(self.strata[stratum], self.strata[here])
        return ir.broadcast(node, [stratum, *(f.target.name for f in path)])

    def map(
        self, expression: Expression, stratum: str, bound: Mapping[Expression, Node] = MappingProxyType({})
    ) -> Node:
        """One Map over `stratum` that computes `expression`; its atoms become operands."""
        if stratum in self.leaves:
            known: dict[Expression, Node] = dict(bound)
            expression, bound = self.lifted(expression, stratum, known), known
        operands: dict[Node, int] = {}

        def leaf_scalar(atom: Expression) -> Scalar:
            node = bound[atom] if atom in bound else self.atom(atom, stratum)
            value = ir.arg(operands.setdefault(self.broadcast(node, stratum), len(operands)))
            return ir.scalar("lt", ir.const(0), value) if atom.is_condition else value

        body = to_scalar(desugar(expression), leaf_scalar)
        if not operands:
            return Const(evaluate(expression, {}), stratum)
        return next(iter(operands)) if body == ir.arg(0) else Map(body, tuple(operands))

    def lifted(self, expression: Expression, leaf: str, known: dict[Expression, Node]) -> Expression:
        """`expression` with a `Coarse` for every part that reads statistics and other coarse values alone.

        `known` receives the part's node, which is computed in float64 at the finest stratum that the part reads.

        Otherwise a sum that is compared with a bound at every token would first be rounded to the tokens' precision.
        """
        if not isinstance(expression, Apply):
            return expression
        read = list(atoms(expression))
        place = self.finest([BATCH if a in known else self.place(a, leaf) for a in read])
        coarse = place not in (None, leaf) and not any(a in known for a in read)
        if place is None or not coarse or not any(isinstance(a, Summary) for a in read):
            return Apply(expression.operator, tuple(self.lifted(a, leaf, known) for a in expression.arguments))
        found = Coarse(expression)
        known[found] = self.map(where(expression, 1, 0) if expression.is_condition else expression, place)
        return found

    def finest(self, places: list[str]) -> str | None:
        """The stratum of `places` that lies over all the others; None if they cross."""
        for place in dict.fromkeys(places):
            under = map(str, self.whole.coarser(Stratum(place)))
            if set(places) <= {place, BATCH, *under}:
                return place
        return None

    def place(self, atom: Expression, stratum: str) -> str:
        """The stratum of an atom's values, if the atom is read at `stratum`."""
        if isinstance(atom, Density):
            return atom.stratum.name
        if isinstance(atom, Ordered):
            return stratum if atom.of is None else str(atom.of)
        return home(self.h, atom) or stratum

    def atom(self, atom: Expression, stratum: str) -> Node:
        if atom == token_log_ratio:
            return ir.token_input("log_ratio", stratum, self.leaves)
        if isinstance(atom, Reading):
            if stratum in self.leaves:
                return ir.token_input(atom.name, stratum, self.leaves)
            return Input(f"{atom.name}_{stratum}", stratum, atom.name)
        if isinstance(atom, LogProb):
            return self.log_prob(atom.policy, stratum)
        if isinstance(atom, Aggregate):
            return self.statistic(atom, stratum)
        if isinstance(atom, Ordered):
            return self.ordered(atom, self.place(atom, stratum))
        if isinstance(atom, Density):
            return self.density[atom.stratum.name, atom.channel or ""]
        place = self.place(atom, stratum)
        if isinstance(atom, Count):
            return Const(1.0, place) if atom.of.name == place else ir.count_input(atom.of.name, place)
        if isinstance(atom, Total):
            return Input(f"total_{atom.attribute.name}_over_{place}", place, "total", (atom.attribute.name, place))
        if isinstance(atom, Attribute):
            return Input(f"attribute_{atom.name}", place, "attribute", (atom.name,))
        parameter, channel = (atom.parameter, atom.channel) if isinstance(atom, Component) else (atom, "")
        assert isinstance(parameter, Parameter)
        word = parameter.name + CHANNEL_WORD[channel]
        return Input(word, place, "parameter", (parameter.name, channel))

    # ------------------------------------------------------------ tokens

    def log_prob(self, policy: Policy, leaf: str) -> Node:
        """log π of tokens under a policy."""
        kind = {CURRENT: "log_prob", OLD: "old_log_prob"}.get(policy.name)
        if kind is None:
            return ir.token_input("policy_log_prob", leaf, self.leaves, (policy.name,))
        return ir.token_input(kind, leaf, self.leaves)

    def tokens(self, formula: Expression, leaf: str) -> Node:
        """A token formula at the tokens of a leaf; a condition is 1 where it holds, else 0."""
        written = log_ratios(at(formula, self.strata[leaf]))
        return self.map(where(written, 1, 0) if written.is_condition else written, leaf)

    def statistic(self, atom: Aggregate, stratum: str) -> Node:
        """A statistic: one number per element of its `over`, or per element of `of` if `others`; summed in float64."""
        over = stratum if atom.over is None else str(atom.over)
        if atom.kind == "quantile" and over not in self.leaves:
            assert atom.level is not None
            values = tuple(self.tokens(atom.formula, leaf) for leaf in self.leaves_over(over))
            return self.maybe_detach(atom, Quantile(over, values, self.map(atom.level, over)))
        each = self.each(atom, over)
        if atom.kind == "mean" and not self.is_exact(atom):
            found: Node = binary("div", self.reduce(each, over), self.number(atom, over))
        elif atom.kind == "mean":
            found = self.exact_mean(atom, each, over)
        elif atom.kind == "deviation":
            found = self.deviation(each, over, self.exact_mean(atom, each, over), self.number(atom, over))
        else:
            found = self.reduce(each, over, "max" if atom.kind in ("largest", "some") else "sum")
        return self.maybe_detach(atom, found)

    def is_exact(self, atom: Aggregate) -> bool:
        """Whether a mean of equal numbers is exactly that number, without a rounding."""
        return atom.of is not None

    def each(self, atom: Aggregate, over: str) -> list[Each]:
        """The values that a statistic reads: its formula at the elements of `of`, or at the tokens of every leaf."""
        if atom.of is None:
            return [Each(leaf, self.tokens(atom.formula, leaf)) for leaf in self.leaves_over(over)]
        of = str(atom.of)
        return [Each(of, self.tokens(atom.formula, of) if of in self.leaves else self.elements(atom.formula, of))]

    def elements(self, formula: Expression, stratum: str) -> Node:
        """A formula at the elements of a coarser stratum; a condition is 1 where it holds, else 0."""
        written = at(formula, Stratum(stratum))
        return self.map(where(written, 1, 0) if written.is_condition else written, stratum)

    def number(self, atom: Aggregate, over: str) -> Node:
        """The number of values that a statistic reads."""
        of = self.leaves_over(over) if atom.of is None else (str(atom.of),)
        return added([ir.count_input(source, over) for source in of if source != over] or [Const(1.0, over)])

    def reduce(self, each: Sequence[Each], over: str, reduce: str = "sum", wide: bool = True) -> Node:
        """The sum, or the largest, of `each` over every element of `over`."""
        parts = []
        for one in each:
            node = one.values if one.times is None else one.often(reduce)
            for source, target in itertools.pairwise(way(self.h, one.source, over)):
                node = self.pushed(source, target, node, reduce, wide and source in self.leaves)
            parts.append(node)
        return functools.reduce(_larger, parts) if reduce == "max" else added(parts)

    def pushed(self, source: str, target: str, node: Node, reduce: str = "sum", wide: bool = False) -> Node:
        """The sum over each fibre, or the largest. The sum of a broadcast value is the value times the count.

        For an element without `source` elements the sum is 0, whatever the value is, and the largest is -inf.
        """
        if reduce == "sum" and isinstance(node, Pull) and node.target in (target, BATCH):
            one = node.operand if node.target == target else Pull(target, BATCH, node.operand)
            found: Node = binary("mul", one, ir.count_input(source, target))
        else:
            found = Push(source, target, node, reduce, wide)
            if reduce == "sum":
                return found
        over = {s.name: self.whole.leaves_over(s) for s in self.whole.strata}
        if over[target] <= over[source]:  # else only another branch may lie over an element
            return found
        return where_some(found, ir.count_input(source, target), 0 if reduce == "sum" else -math.inf)

    def exact_mean(self, atom: Aggregate, each: Sequence[Each], over: str) -> Node:
        """The mean as `a + Σ(f - a)/n`, where `a` is the largest value. If all values are `a`, it is exactly `a`.

        The mean of the others leaves out the element that it is read at.
        """
        largest: Node = Detach(self.reduce(each, over, "max"))  # its derivatives cancel
        apart = [replace(e, values=binary("sub", e.values, self.broadcast(largest, e.source))) for e in each]
        total = added([self.sum_apart(e, largest, over) for e in each])
        number = self.number(atom, over)
        if atom.others:
            (own,) = apart
            total = binary("sub", self.broadcast(total, own.source), own.values)
            number = Map(ir.scalar("sub", ir.arg(0), ir.const(1)), (self.broadcast(number, own.source),))
            largest = self.broadcast(largest, own.source)
        return binary("add", largest, binary("div", total, number))

    def sum_apart(self, each: Each, largest: Node, over: str) -> Node:
        """The sum of the differences of values from the `largest` over an element of `over`.

        For tokens it is the sum of their differences from the largest value of their row, and of the row's difference
        for each token: a sweep knows no more than a row. A row without tokens of the leaf adds 0.
        """
        source, row = next(iter(itertools.pairwise(way(self.h, each.source, over))), (each.source, over))
        if each.times is not None or source not in self.leaves or row == over:
            return self.reduce(
                [replace(each, values=binary("sub", each.values, self.broadcast(largest, source)))], over
            )
        top: Node = Detach(self.pushed(source, row, each.values, "max"))
        inside = self.pushed(source, row, binary("sub", each.values, self.broadcast(top, source)), wide=True)
        away = ir.scalar("mul", ir.arg(0), ir.scalar("sub", ir.arg(1), ir.arg(2)))
        some = ir.scalar("lt", ir.const(0), ir.arg(0))
        outside = Map(
            ir.scalar("add", ir.arg(3), ir.scalar("select", some, away, ir.const(0))),
            (ir.count_input(source, row), top, self.broadcast(largest, row), inside),
        )
        return self.reduce([Each(row, outside)], over)

    def deviation(self, each: Sequence[Each], over: str, mean: Node, number: Node) -> Node:
        """`sqrt(Σ(f - mean)²/(n - 1))`, which is exactly 0 for equal numbers; a difference of squares is not."""
        apart = (binary("sub", e.values, self.broadcast(mean, e.source)) for e in each)
        squares = [replace(e, values=binary("mul", d, d)) for e, d in zip(each, apart, strict=True)]
        alone = ir.scalar("le", ir.arg(1), ir.const(1))
        root = ir.scalar("sqrt", ir.scalar("div", ir.arg(0), ir.scalar("sub", ir.arg(1), ir.const(1))))
        return Map(ir.scalar("select", alone, ir.const(0), root), (self.reduce(squares, over), number))

    def maybe_detach(self, atom: Aggregate, found: Node) -> Node:
        """The statistic that formulas read: no gradient flows through it."""
        return Detach(found)

    def ordered(self, atom: Ordered, into: str) -> Node:
        """A sum in order at the elements of `into`: the tokens of a leaf, or its own `of`. Gradients flow."""
        over = str(atom.over)
        if atom.of is None:
            values = tuple(self.tokens(atom.formula, leaf) for leaf in self.leaves_over(over))
        else:
            values = (self.elements(atom.formula, into),)
        return Scan(into, over, values, self.map(atom.discount, BATCH), atom.is_forward)

    def leaves_over(self, stratum: str) -> tuple[str, ...]:
        """The leaves whose tokens lie over the elements of a stratum: all leaves for rows, groups and the batch."""
        if stratum in (BATCH, self.rows, *self.groups):
            return self.leaves
        over = self.shape.leaves_over(self.strata[stratum])
        return tuple(s.name for s in self.h.leaves if s in over)


@dataclass(frozen=True)
class Each:
    """The values that a statistic reads at the elements of a stratum. Each counts `times` times, or once."""

    source: str
    values: Node
    times: Node | None = None

    def often(self, reduce: str) -> Node:
        """The values times their counts. For the largest, a value that counts 0 times becomes -inf."""
        assert self.times is not None
        if reduce == "sum":
            return binary("mul", self.values, self.times)
        return where_some(self.values, self.times, -math.inf)


@dataclass(frozen=True, repr=False, eq=False)
class Coarse(Expression):
    """A part of a formula that is computed at a coarser stratum than the formula."""

    formula: Expression

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return self.formula.is_condition

    def text(self) -> str:
        return str(self.formula)


def log_ratios(formula: Expression) -> Expression:
    """`formula` with `log_prob(current) - log_prob(old)` replaced by the log ratio, which every program has."""
    known = {NOW - BEFORE: token_log_ratio, BEFORE - NOW: -token_log_ratio}
    return rewrite(formula, lambda e: known.get(e, e))


def where_some(values: Node, number: Node, otherwise: float) -> Node:
    """`values` where their number is above 0."""
    some = ir.scalar("lt", ir.const(0), ir.arg(1))
    return Map(ir.scalar("select", some, ir.arg(0), ir.const(otherwise)), (values, number))


def _larger(a: Node, b: Node) -> Node:
    return Map(ir.scalar("select", ir.scalar("lt", ir.arg(0), ir.arg(1)), ir.arg(1), ir.arg(0)), (a, b))


def added(nodes: Sequence[Node]) -> Node:
    return functools.reduce(functools.partial(binary, "add"), nodes)


def minus(a: Node, b: Node, times: int) -> Map:
    """`a - times·b`."""
    if times == 1:
        return binary("sub", a, b)
    if times == -1:
        return binary("add", a, b)
    return Map(ir.scalar("sub", ir.arg(0), ir.scalar("mul", ir.const(times), ir.arg(1))), (a, b))
