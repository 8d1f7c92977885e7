"""declare → IR: the normal form of a hierarchy, in which FGH (eq:fgh_gating) gates martingale differences.

Densities are extensive; here they become intensive, `s = density / m`, where `m` is the leaf measure whose
disintegrations the kernels are. A pushforward is then a weighted mean, a reflecting kernel a broadcast, a residual
`s_b - s_parent`, and a gate `h(s) = g(m·s)/m`, in which factors such as `|Tj(g)|` and `1/T` cancel symbolically.
Where strata cross, what they have in common is taken out once (`Shape.moebius`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

from fibration.compiler import ir
from fibration.compiler.ir import Const, Detach, Input, Map, Node, Program, Pull, Push, Scalar
from fibration.compiler.keys import Key
from fibration.compiler.scalars import to_scalar
from fibration.errors import SpecError
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Reading,
    Stratum,
    Total,
    in_channel,
    residual,
    token_log_ratio,
)
from fibration.language.cancel import cancel, factors_over
from fibration.language.decompositions import CHANNEL_WORD
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import home, row_path
from fibration.language.policies import LogProb
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms, desugar, evaluate, substitute


def lower(hierarchy: Hierarchy) -> Program:
    """The program of a verified hierarchy: `gated_ratio`, `objective`, and what diagnostics read of every level."""
    try:
        return _Lowering(hierarchy).program().validate()
    except (NoValue, TooLarge) as error:
        raise SpecError(
            f"hierarchy '{hierarchy.name}' has a constant without a value in float64",
            required="expressions with a value",
            found=str(error),
        ) from None


class _Lowering:
    def __init__(self, hierarchy: Hierarchy) -> None:
        self.h, self.shape = hierarchy, hierarchy.shape
        self.order = hierarchy.order
        self.strata = {s.name: s for s in self.order}
        self.leaves = tuple(s.name for s in hierarchy.leaves)
        self.rows = hierarchy.rows.name
        self.mass = {s.name: m for s, m in hierarchy.masses.items()}
        self.names: dict[Node, Key] = {}
        self.density: dict[tuple[str, str], Node] = {}

    # ------------------------------------------------------------ the two sweeps

    def program(self) -> Program:
        h = self.h
        for channel in h.decomposition.channels:
            for stratum in reversed(self.order):
                name = stratum.name
                if name in self.leaves:
                    intensive = cancel(h.with_mass(h.decomposition[channel], stratum) / self.mass[name])
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
                    level = _binary("add", node, level) if sign == 1 else _minus(level, node, -sign)
                down[name, channel] = self.named(level, "down", name, channel)

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
                **outputs,
            },
            names=self.names,
        )

    def mean(self, target: Stratum, channel: str) -> Node:
        """`s_b = Σ K(a|b)·s_a` over all that lies over `b`, with what is constant on a fibre taken out of its sum."""
        covers = self.shape.covers(target)
        cover = next((c for c in covers if not any(f.source.name in self.leaves for f in c)), covers[0])
        terms = []
        for f in cover:
            source = f.source.name
            inside, outside = factors_over(cancel(self.mass[source] / self.mass[target.name]), source)
            summed: Node = Push(source, target.name, self.scaled(inside, self.density[source, channel]))
            term = self.scaled(outside, summed)
            if len(cover) > 1 and not self.has_value_without(f.source, outside):
                here = ir.count_input(source, target.name)
                there = ir.scalar("lt", ir.const(0), ir.arg(0))
                term = Map(ir.scalar("select", there, ir.arg(1), ir.const(0)), (here, term))
            terms.append(term)
        return _sum(terms)

    def has_value_without(self, branch: Stratum, factor: Expression) -> bool:
        """Whether a factor of a kernel has a value at an element over which nothing of this branch lies."""
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
        """`ρ_v = s_v - Σ_{u coarser} ρ_u` of every stratum; of crossed ones by projection, where that is declared."""
        density = {s.name: self.density[s.name, channel] for s in self.order}
        under = self.shape.under_crossings() if self.h.orthogonalise else ()
        crossed = self.shape.crossed() if self.h.orthogonalise else ()
        found: dict[str, Node] = {}
        for stratum in self.order:
            name = stratum.name
            if stratum in crossed:
                found[name] = _sum([ir.Mix(name, s.name, density[s.name]) for s in under])
                continue
            s = density[name]
            if any(u in crossed for u in self.shape.moebius(stratum)):
                for u in self.shape.coarser(stratum):
                    s = _minus(s, self.pull(found[u.name], name), 1)
            else:
                for node, sign in self.coarser(stratum, density):
                    s = _minus(s, node, sign)
            found[name] = s
        return found

    def coarser(self, stratum: Stratum, vectors: dict[str, Node]) -> Iterator[tuple[Node, int]]:
        """The vectors over coarser strata whose sum, with these signs, has every coarser level in it once."""
        for u, sign in self.shape.moebius(stratum).items():
            yield self.pull(vectors[u.name], stratum.name), sign

    def scaled(self, factor: Expression, node: Node) -> Node:
        if factor == as_expression(1):
            return node
        product = factor.arguments if isinstance(factor, Apply) and factor.operator == "/" else None
        if product and product[0] == as_expression(1):  # divide once rather than multiply by a rounded reciprocal
            return _binary("div", node, self.map(product[1], node.stratum))
        return _binary("mul", node, self.map(factor, node.stratum))

    def gate(self, stratum: Stratum, channel: str, s: Node) -> Node:
        """`h(s) = g(m·s)/m`."""
        m = self.mass[stratum.name]
        g = in_channel(self.h.gate(stratum), channel)
        values: dict[Expression, Expression] = {residual: m * residual}
        values |= {a: self.mass[a.stratum.name] * a for a in atoms(g) if isinstance(a, Density)}
        return self.map(cancel(substitute(g, values) / m), stratum.name, {residual: s})

    def recover(self, leaf: str, down: dict[str, Node]) -> Node:
        m = self.mass[leaf]
        recovery = self.h.with_mass(self.h.decomposition.recovery, self.strata[leaf])
        recovery = substitute(recovery, {Gated(c): m * Gated(c) for c in down})
        return self.map(cancel(recovery), leaf, {Gated(c): n for c, n in down.items()})

    def objective(self, ratios: dict[str, Node]) -> Node:
        """`J = Σ μ 𝒢 A`: summed over each row first, so that no partial sum runs over the whole batch of tokens."""
        if self.h.objective.formulas:
            raise SpecError(f"hierarchy '{self.h.name}' weighs tokens, and no backend does", required="μ alone")
        weight = self.map(self.h.objective.spelled_out(self.h.leaves, self.h.rows), self.rows)
        sums = []
        for leaf, ratio in ratios.items():
            advantage = ir.token_input("advantage", leaf, self.leaves)
            product = _binary("mul", ratio, advantage)
            if self.h.objective.estimator == "score":
                weighted = _binary("mul", Detach(ratio), advantage)
                product = _binary("mul", weighted, ir.token_input("log_prob", leaf, self.leaves))
            total: Node = product
            for source, target in itertools.pairwise(row_path(self.h, leaf)):
                total = Push(source, target, total)
            sums.append(total)
        return Push(self.rows, BATCH, _binary("mul", weight, _sum(sums)))

    # ------------------------------------------------------------ expressions

    def named(self, node: Node, word: str, stratum: str, channel: str) -> Node:
        self.names.setdefault(node, Key(word, stratum, channel))
        return node

    def pull(self, node: Node, stratum: str) -> Node:
        """Broadcast `node` up to `stratum`, along the fibrations; from the batch and from side strata in one step."""
        here = node.stratum
        if here == stratum:
            return node
        known = here in self.strata and stratum in self.strata and here != BATCH
        if not known or self.strata[here] not in self.shape.coarser(self.strata[stratum]):
            return Pull(stratum, here, node)
        for f in reversed(self.shape.path(self.strata[stratum], self.strata[here])):
            node = Pull(f.source.name, f.target.name, node)
        return node

    def map(
        self, expression: Expression, stratum: str, bound: Mapping[Expression, Node] = MappingProxyType({})
    ) -> Node:
        """One Map over `stratum` that computes `expression`; its atoms become operands."""
        operands: dict[Node, int] = {}

        def leaf_scalar(atom: Expression) -> Scalar:
            node = bound[atom] if atom in bound else self.atom(atom, stratum)
            return ir.arg(operands.setdefault(self.pull(node, stratum), len(operands)))

        body = to_scalar(desugar(expression), leaf_scalar)
        if not operands:
            return Const(float(evaluate(expression, {})), stratum)
        return next(iter(operands)) if body == ir.arg(0) else Map(body, tuple(operands))

    def atom(self, atom: Expression, stratum: str) -> Node:
        if atom == token_log_ratio:
            return ir.token_input("log_ratio", stratum, self.leaves)
        if isinstance(atom, Reading):
            if stratum in self.leaves:
                return ir.token_input(atom.name, stratum, self.leaves)
            return Input(f"{atom.name}_{stratum}", stratum, atom.name)
        if isinstance(atom, Density):
            return self.density[atom.stratum.name, atom.channel or ""]
        if isinstance(atom, (Aggregate, LogProb)):
            raise SpecError(f"hierarchy '{self.h.name}' reads {atom}, which no backend computes")
        place = home(self.h, atom) or stratum
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


def _binary(op: str, a: Node, b: Node) -> Map:
    operands = (a, b) if a is not b else (a,)
    return Map(ir.scalar(op, ir.arg(0), ir.arg(len(operands) - 1)), operands)


def _sum(nodes: Sequence[Node]) -> Node:
    return functools.reduce(lambda a, b: _binary("add", a, b), nodes)


def _minus(a: Node, b: Node, times: int) -> Map:
    """`a - times·b`."""
    if times == 1:
        return _binary("sub", a, b)
    if times == -1:
        return _binary("add", a, b)
    return Map(ir.scalar("sub", ir.arg(0), ir.scalar("mul", ir.const(times), ir.arg(1))), (a, b))


def from_log_probs(program: Program) -> Program:
    """`program` with the log ratios worked out from log-probs now and when sampled, in the tokens' precision."""
    named: dict[Node, Key] = {}

    def rule(node: Node) -> Node:
        if not (isinstance(node, Input) and node.kind == "log_ratio"):
            return node
        now, old = (program.token_input(kind, node.stratum) for kind in ("log_prob", "old_log_prob"))
        difference = _binary("sub", now, old)
        named[difference] = program.part("log_ratio", node.stratum)
        return difference

    made = program.mapped(rule)
    return replace(made, names={**made.names, **named}).validate()
