"""Lowers a hierarchy to its normal form in the IR, in which FGH (eq:fgh_gating) gates martingale differences.

Densities are extensive. The IR uses intensive ones, `s = density / m`; the kernels are disintegrations of the leaf
measure `m`. A pushforward is then a weighted mean, a reflecting kernel a broadcast, a residual `s_b - s_parent`, and a
gate `h(s) = g(m·s)/m`, in which factors like `|Tj(g)|` and `1/T` cancel symbolically.
If strata cross, their common part is subtracted once (`Shape.moebius`).

A term of the objective or of a penalty is pushed to its row first, so that no partial sum runs over the whole batch of
tokens. Gradients flow through the sums and means of tokens that a penalty reads, unlike in weights and gates.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from fibration.compiler import ir
from fibration.compiler.formulas import Each, Formulas, added, minus
from fibration.compiler.ir import Detach, Input, Key, Map, Node, Push, binary
from fibration.compiler.program import Program
from fibration.compiler.scalars import ONE, ZERO
from fibration.errors import SpecError
from fibration.language.atoms import BATCH, Count, Density, Gated, Stratum, Total, at, in_channel, residual
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.gates import Gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, Penalty
from fibration.language.outline import row_path, way
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.strata import factors_over
from fibration.language.traversal import atoms, cancel, evaluate, substitute


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
        formula = self.tokens(penalty.formula, leaf)
        body, inputs = (formula.body, formula.inputs) if isinstance(formula, Map) else (ir.arg(0), (formula,))
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


def lower(hierarchy: Hierarchy) -> Program:
    """The program of a verified hierarchy: `gated_ratio`, `objective`, and the vectors that diagnostics read.

    Raises SpecError if a constant has no value in float64.
    """
    try:
        return _Lowering(hierarchy).program().validate()
    except (NoValue, TooLarge) as error:
        raise SpecError(
            f"hierarchy '{hierarchy.name}' has a constant without a value in float64",
            required="expressions with a value",
            found=str(error),
        ) from None


def _word(gate: Gate) -> str:
    """The function that makes a gate; `gate` for a formula, or for one per channel."""
    name = gate.written.partition("(")[0]
    made = name if name.isidentifier() and name.islower() else "gate"
    return made + "_inward" * (").inward(" in gate.written)


class _Lowering(Terms):
    def __init__(self, hierarchy: Hierarchy) -> None:
        super().__init__(hierarchy)
        self.mass = {s.name: m for s, m in hierarchy.masses.items()}
        self.read: dict[Key, Node] = {}  # for diagnostics: token weights, kept tokens, penalties

    # ------------------------------------------------------------ the two sweeps

    def program(self) -> Program:
        h = self.h
        for channel in h.decomposition.channels:
            for stratum in reversed(self.order):
                name = stratum.name
                if name in self.leaves:
                    density = in_channel(h.with_mass(h.decomposition[channel], stratum), channel)
                    intensive = cancel(density / self.mass[name])
                    node = self.map(intensive, name)
                else:
                    node = self.mean(stratum, channel)
                self.density[name, channel] = self.named(node, "s", name, channel)

        outputs: dict[Key, Node] = {}
        down: dict[tuple[str, str], Node] = {}
        for channel in h.decomposition.channels:
            residuals = self.residuals(channel)
            for stratum in self.order:
                name = stratum.name
                s = self.named(residuals[name], "residual", name, channel)
                level = self.named(self.gate(stratum, channel, s), "gated", name, channel)
                outputs[Key("residual", name, channel)] = s
                outputs[Key("gated", name, channel)] = level
                for node, sign in self.coarser(stratum, {k: v for (k, c), v in down.items() if c == channel}):
                    level = binary("add", node, level) if sign == 1 else minus(level, node, -sign)
                down[name, channel] = self.named(level, "down", name, channel)
                if name in self.leaves:
                    outputs[Key("down", name, channel)] = level

        channels = h.decomposition.channels
        ratios = {leaf: self.recover(leaf, {c: down[leaf, c] for c in channels}) for leaf in self.leaves}
        for leaf, ratio in ratios.items():
            self.names[ratio] = ir.part("ratio", leaf, self.leaves)
        return Program(
            name=h.name,
            leaves=self.leaves,
            outputs={
                **{ir.part("gated_ratio", leaf, self.leaves): r for leaf, r in ratios.items()},
                Key("objective"): self.objective(ratios),
                **self.read,
                **outputs,
            },
            names=self.names,
            gates={s.name: _word(gate) for s, gate in h.gates.items()},
        )

    def mean(self, target: Stratum, channel: str) -> Node:
        """`s_b = Σ K(a|b)·s_a` over the elements over `b`. Factors that are constant on a fibre multiply the sum."""
        covers = self.shape.covers(target)
        cover = next((c for c in covers if not any(f.source.name in self.leaves for f in c)), covers[0])
        terms = []
        for f in cover:
            source = f.source.name
            inside, outside = factors_over(cancel(self.mass[source] / self.mass[target.name]), source)
            summed: Node = Push(source, target.name, self.scaled(inside, self.density[source, channel]))
            term = self.scaled(outside, summed)
            if len(cover) > 1 and not self.has_value_without(f.source, outside):
                term = where_kept(ir.count_input(source, target.name), term)
            terms.append(term)
        return added(terms)

    def has_value_without(self, branch: Stratum, factor: Expression) -> bool:
        """Whether a kernel's factor has a value at an element without elements of this branch over it."""
        empty = (branch, *self.shape.finer(branch))

        def value(atom: Expression) -> Fraction:
            of = atom.of if isinstance(atom, (Count, Total)) else None
            return Fraction(of not in empty)

        try:
            evaluate(factor, value)
        except (NoValue, TooLarge):
            return False
        return True

    def residuals(self, channel: str) -> dict[str, Node]:
        """`ρ_v = s_v - Σ_{u coarser} ρ_u` of every stratum. `orthogonalise`: crossed strata use a projection."""
        density = {s.name: self.density[s.name, channel] for s in self.order}
        under = self.shape.under_crossings() if self.h.orthogonalise else ()
        crossed = self.shape.crossed() if self.h.orthogonalise else ()
        found: dict[str, Node] = {}
        for stratum in self.order:
            name = stratum.name
            if stratum in crossed:
                found[name] = added([ir.Mix(name, s.name, density[s.name]) for s in under])
                continue
            s = density[name]
            if any(u in crossed for u in self.shape.moebius(stratum)):
                for u in self.shape.coarser(stratum):
                    s = minus(s, self.broadcast(found[u.name], name), 1)
            else:
                for node, sign in self.coarser(stratum, density):
                    s = minus(s, node, sign)
            found[name] = s
        return found

    def coarser(self, stratum: Stratum, vectors: dict[str, Node]) -> Iterator[tuple[Node, int]]:
        """Vectors over coarser strata, with signs. Their signed sum contains every coarser level once."""
        for u, sign in self.shape.moebius(stratum).items():
            yield self.broadcast(vectors[u.name], stratum.name), sign

    def scaled(self, factor: Expression, node: Node) -> Node:
        if factor == as_expression(1):
            return node
        product = factor.arguments if isinstance(factor, Apply) and factor.operator == "/" else None
        if product and product[0] == as_expression(1):  # divide once rather than multiply by a rounded reciprocal
            return binary("div", node, self.map(product[1], node.stratum))
        return binary("mul", node, self.map(factor, node.stratum))

    def gate(self, stratum: Stratum, channel: str, s: Node) -> Node:
        """`h(s) = g(m·s)/m`. Sums in order are detached, like statistics."""
        m = self.mass[stratum.name]
        g = in_channel(self.h.gate(stratum), channel)
        values: dict[Expression, Expression] = {residual: m * residual}
        values |= {a: self.mass[a.stratum.name] * a for a in atoms(g, Density)}
        formula = cancel(substitute(g, values) / m)
        read: dict[Expression, Node] = {residual: s}
        read |= {a: Detach(self.atom(a, stratum.name)) for a in atoms(formula, Ordered)}
        return self.map(formula, stratum.name, read)

    def recover(self, leaf: str, down: dict[str, Node]) -> Node:
        m = self.mass[leaf]
        recovery = self.h.with_mass(self.h.decomposition.recovery, self.strata[leaf])
        recovery = substitute(recovery, {Gated(c): m * Gated(c) for c in down})
        return self.map(cancel(recovery), leaf, {Gated(c): n for c, n in down.items()})

    def objective(self, ratios: dict[str, Node]) -> Node:
        """`J = Σ μ w 𝒢 A` minus penalties. A token that `keep` drops adds 0, whatever its weight and ratio are."""
        objective = self.h.objective
        terms: dict[str, Node] = {}
        for leaf, ratio in ratios.items():
            advantage = ir.token_input("advantage", leaf, self.leaves)
            for i, formula in enumerate(objective.weighed, 1):
                weight = self.of_tokens(f"weight_{i}", leaf, self.tokens(formula, leaf))
                ratio = binary("mul", ratio, weight)
            term: Node = binary("mul", ratio, advantage)
            if objective.estimator == "score":
                weighted = binary("mul", Detach(ratio), advantage)
                term = binary("mul", weighted, ir.token_input("log_prob", leaf, self.leaves))
            if objective.kept:
                kept = self.conditions(leaf, [k.condition for k in objective.kept])
                term = where_kept(self.of_tokens("kept", leaf, kept), term)
            terms[leaf] = term
        return self.penalised(self.summed(objective, terms))

    def penalised(self, objective: Node) -> Node:
        """`J` minus all penalties."""
        penalties = Penalties(self.h)
        found = penalties.lower_penalties()
        self.names.update({node: key for node, key in penalties.names.items() if node not in self.names})
        for (name, leaf), term in found.terms.items():
            self.read[ir.part(f"term_{name}", leaf, self.leaves)] = Detach(term)
        self.read |= {Key("penalty", name): value for name, value in found.values.items()}
        return binary("sub", objective, added(list(found.values.values()))) if found.values else objective

    def of_tokens(self, word: str, leaf: str, node: Node) -> Node:
        """A weight or a condition of tokens, detached. Diagnostics read it too."""
        key = ir.part(word, leaf, self.leaves)
        self.names.setdefault(node, key)
        self.read[key] = Detach(node)
        return self.read[key]

    def named(self, node: Node, word: str, stratum: str, channel: str) -> Node:
        self.names.setdefault(node, Key(word, stratum, channel))
        return node


def from_log_probs(program: Program) -> Program:
    """`program` with log ratios computed from current and old log-probs, in the tokens' precision."""
    named: dict[Node, Key] = {}

    def rule(node: Node) -> Node:
        if not (isinstance(node, Input) and node.kind == "log_ratio"):
            return node
        now, old = (program.token_input(kind, node.stratum) for kind in ("log_prob", "old_log_prob"))
        difference = binary("sub", now, old)
        named[difference] = program.part("log_ratio", node.stratum)
        return difference

    made = program.mapped(rule)
    return replace(made, names={**made.names, **named}).validate()


def from_log_ratios(program: Program) -> Program:
    """`program` with current log-probs, which weights or statistics read, computed from old ones and log ratios."""

    def rule(node: Node) -> Node:
        if not (isinstance(node, Input) and node.kind == "log_prob"):
            return node
        return binary("add", *(program.token_input(kind, node.stratum) for kind in ("old_log_prob", "log_ratio")))

    return program.mapped(rule).validate()
