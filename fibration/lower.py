"""declare → IR: the normal form of a chain, in which FGH (eq:fgh_gating) gates martingale differences.

Densities are extensive; here they become intensive, `s = density / m`, where `m` is the leaf measure whose
disintegrations the kernels are. A pushforward is then a weighted mean, a reflecting kernel a broadcast, a residual
`s_b - s_parent`, and a gate `h(s) = g(m·s)/m`, in which factors such as `|Tj(g)|` and `1/T` cancel symbolically.
"""

from __future__ import annotations

import itertools

from fibration import ir
from fibration.cancel import cancel, factors_over
from fibration.errors import SpecError
from fibration.expressions import Apply, Expression, Number, as_expression, atoms, desugar, evaluate, substitute
from fibration.ir import Const, Input, Map, Node, Program, Pull, Push, Scalar
from fibration.spec import Hierarchy
from fibration.symbols import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Place,
    Reading,
    Total,
    Where,
    in_channel,
    residual,
    token_log_ratio,
)

CHANNEL_WORD = {"": "", "+": "_plus", "-": "_minus"}
_SCALAR = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "neg": "neg", "<": "lt", "<=": "le", "and": "and", "or": "or",
    "not": "not", "where": "select", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "tanh": "tanh",
    "sigmoid": "sigmoid", "sqrt": "sqrt",
}  # fmt: skip


def lower(hierarchy: Hierarchy) -> Program:
    """The program of a verified chain: `gated_ratio`, `objective`, and what diagnostics read of every level."""
    try:
        return _Lowering(hierarchy).program().validate()
    except ZeroDivisionError as error:
        raise SpecError(
            f"hierarchy '{hierarchy.name}' divides by a number that is 0",
            required="expressions with a value",
            found=str(error),
        ) from None


def home(hierarchy: Hierarchy, parameter: Parameter) -> str:
    """Where a parameter may vary: `on`, or the coarsest stratum that reads it (never the leaf).

    A kernel reads at its target, since its weights are normalised over each target element. One that the objective
    reads has one value for the whole batch.
    """
    if parameter.on is not None:
        return parameter.on.name
    if parameter in set(atoms(hierarchy.objective.weight)):
        return BATCH
    shape = hierarchy.shape
    readers = []
    for s in (s for s in hierarchy.order if s not in hierarchy.leaves):
        read = [hierarchy.gate(s), *(f.weight for f in shape.above(s))]
        if any(parameter in set(atoms(e)) for e in read):
            readers.append(s)
    # where strata that cross read it, it has one value for the batch
    one = readers and all(s == readers[0] or readers[0] in shape.coarser(s) for s in readers)
    return readers[0].name if one else BATCH


class _Lowering:
    def __init__(self, hierarchy: Hierarchy) -> None:
        self.h = hierarchy
        self.chain = [s.name for s in hierarchy.chain]
        self.leaf, self.root = self.chain[-1], self.chain[0]
        self.rows = hierarchy.rows.name
        self.measure = {s.name: m for s, m in hierarchy.masses.items()}
        self.words = self.parameter_words()
        self.names: dict[Node, str] = {}
        self.density: dict[tuple[str, str], Node] = {}

    # ------------------------------------------------------------ the two sweeps

    def program(self) -> Program:
        h = self.h
        for channel in h.decomposition.channels:
            intensive = cancel(h.with_mass(h.decomposition[channel], h.leaf) / self.measure[self.leaf])
            self.density[self.leaf, channel] = self.named(self.map(intensive, self.leaf), "s", self.leaf, channel)
            for source, target in reversed(list(zip(self.chain[1:], self.chain, strict=False))):
                self.density[target, channel] = self.named(self.mean(source, target, channel), "s", target, channel)

        outputs: dict[str, Node] = {}
        down: dict[str, Node] = {}
        for channel in h.decomposition.channels:
            for depth, stratum in enumerate(self.chain):
                s = self.density[stratum, channel]
                if depth:
                    base = self.pull(self.density[self.chain[depth - 1], channel], stratum)
                    s = self.named(_binary("sub", s, base), "residual", stratum, channel)
                level = self.named(self.gate(stratum, channel, s), "gated", stratum, channel)
                outputs[f"residual_{stratum}{CHANNEL_WORD[channel]}"] = s
                outputs[f"gated_{stratum}{CHANNEL_WORD[channel]}"] = level
                if depth:
                    level = _binary("add", self.pull(down[channel], stratum), level)
                down[channel] = self.named(level, "down", stratum, channel)

        ratio = self.recover(down)
        self.names[ratio] = "ratio"
        return Program(
            name=h.name,
            leaf=self.leaf,
            outputs={"gated_ratio": ratio, "objective": self.objective(ratio), **outputs},
            names=self.names,
        )

    def mean(self, source: str, target: str, channel: str) -> Node:
        """`s_b = Σ_{a over b} K(a|b)·s_a`, with the factors that are constant on the fibre taken out of the sum."""
        weight = cancel(self.measure[source] / self.measure[target])
        inside, outside = factors_over(weight, source)
        summed: Node = Push(source, target, self.scaled(inside, self.density[source, channel]))
        return self.scaled(outside, summed)

    def scaled(self, factor: Expression, node: Node) -> Node:
        if factor == as_expression(1):
            return node
        product = factor.arguments if isinstance(factor, Apply) and factor.operator == "/" else None
        if product and product[0] == as_expression(1):  # divide once rather than multiply by a rounded reciprocal
            return _binary("div", node, self.map(product[1], node.stratum))
        return _binary("mul", node, self.map(factor, node.stratum))

    def gate(self, stratum: str, channel: str, s: Node) -> Node:
        """`h(s) = g(m·s)/m`."""
        m = self.measure[stratum]
        g = in_channel(self.h.gate(next(x for x in self.h.chain if x.name == stratum)), channel)
        values: dict[Expression, Expression] = {residual: m * residual}
        for a in atoms(g):
            if isinstance(a, Density):
                values[a] = self.measure[a.stratum.name] * a
        return self.map(cancel(substitute(g, values) / m), stratum, {residual: s})

    def recover(self, down: dict[str, Node]) -> Node:
        m = self.measure[self.leaf]
        recovery = substitute(self.h.decomposition.recovery, {Gated(c): m * Gated(c) for c in down})
        return self.map(cancel(recovery), self.leaf, {Gated(c): n for c, n in down.items()})

    def objective(self, ratio: Node) -> Node:
        """`J = Σ μ 𝒢 A`: summed over each row first, so that no partial sum runs over the whole batch of tokens."""
        places = {"leaf": self.leaf, "rows": self.rows, BATCH: BATCH}
        weight = self.map(self.h.objective.weight, self.rows, places=places)
        product = _binary("mul", ratio, Input("advantage", self.leaf, "advantage"))
        total: Node = product
        path = [self.leaf, self.rows]
        if self.rows in self.chain:
            path = list(reversed(self.chain[self.chain.index(self.rows) :]))
        for source, target in itertools.pairwise(path):
            total = Push(source, target, total)
        return Push(self.rows, BATCH, _binary("mul", weight, total))

    # ------------------------------------------------------------ expressions

    def named(self, node: Node, word: str, stratum: str, channel: str) -> Node:
        self.names.setdefault(node, f"{word}_{stratum}{CHANNEL_WORD[channel]}")
        return node

    def pull(self, node: Node, stratum: str) -> Node:
        """Broadcast `node` up to `stratum`, along the chain; from the batch and from side strata in one step."""
        while node.stratum != stratum:
            here = node.stratum
            along = here in self.chain and stratum in self.chain
            source = self.chain[self.chain.index(here) + 1] if along else stratum
            node = Pull(source, here, node)
        return node

    def home(self, parameter: Parameter) -> str:
        return home(self.h, parameter)

    def map(
        self,
        expression: Expression,
        stratum: str,
        bound: dict[Expression, Node] | None = None,
        places: dict[str, str] | None = None,
    ) -> Node:
        """One Map over `stratum` that computes `expression`; its atoms become operands."""
        operands: dict[Node, int] = {}

        def leaf_scalar(atom: Expression) -> Scalar:
            node = bound[atom] if bound and atom in bound else self.atom(atom, stratum, places or {})
            return ir.arg(operands.setdefault(self.pull(node, stratum), len(operands)))

        body = to_scalar(desugar(expression), leaf_scalar)
        if not operands:
            return Const(float(evaluate(expression, {})), stratum)
        return next(iter(operands)) if body == ir.arg(0) else Map(body, tuple(operands))

    def atom(self, atom: Expression, stratum: str, places: dict[str, str]) -> Node:
        def name_of(place: Where) -> str:
            if place is None:
                return stratum
            return places[place.name] if isinstance(place, Place) else place.name

        if atom == token_log_ratio:
            return Input("log_ratio", self.leaf, "log_ratio")
        if isinstance(atom, Reading):
            return Input(f"{atom.name}_{stratum}" if stratum != self.leaf else atom.name, stratum, atom.name)
        if isinstance(atom, Density):
            return self.density[atom.stratum.name, atom.channel or ""]
        if isinstance(atom, Count):
            of, over = name_of(atom.of), name_of(atom.over)
            if of == over:
                return Const(1.0, over)
            return ir.count_input(of, over)
        if isinstance(atom, Total):
            over = name_of(atom.over)
            return Input(f"total_{atom.attribute.name}_over_{over}", over, "total", (atom.attribute.name, over))
        if isinstance(atom, Attribute):
            return Input(f"attribute_{atom.name}", atom.on.name, "attribute", (atom.name,))
        parameter, channel = (atom.parameter, atom.channel) if isinstance(atom, Component) else (atom, "")
        assert isinstance(parameter, Parameter)
        return Input(self.words[parameter.name, channel], self.home(parameter), "parameter", (parameter.name, channel))

    def parameter_words(self) -> dict[tuple[str, str], str]:
        """The input of every parameter and channel: named after them, and unlike any other input."""
        strata = {*self.chain, self.rows, BATCH}
        taken = {"log_ratio", "cotangent", "advantage", *(f"advantage_{s}" for s in strata)}
        taken |= {f"count_{of}_over_{over}" for of in strata for over in strata}
        for a in self.h.attributes:
            taken |= {f"attribute_{a}", *(f"total_{a}_over_{s}" for s in strata)}
        words: dict[tuple[str, str], str] = {}
        for name in self.h.parameters:
            for channel, word in CHANNEL_WORD.items():
                wanted = free = name + word
                number = 1
                while free in taken:
                    number += 1
                    free = f"{wanted}_{number}"
                taken.add(free)
                words[name, channel] = free
        return words


def to_scalar(expression: Expression, atom) -> Scalar:  # type: ignore[no-untyped-def]
    """A desugared expression as a scalar body."""
    if isinstance(expression, Number):
        return ir.const(float(expression.value))
    if not isinstance(expression, Apply):
        return atom(expression)  # type: ignore[no-any-return]
    if expression.operator == "**":
        base = to_scalar(expression.arguments[0], atom)
        exponent = expression.arguments[1]
        assert isinstance(exponent, Number)
        result = base
        for _ in range(int(exponent.value) - 1):
            result = ir.scalar("mul", result, base)
        return result
    args = [to_scalar(a, atom) for a in expression.arguments]
    if expression.operator in (">", ">="):
        return ir.scalar("lt" if expression.operator == ">" else "le", args[1], args[0])
    return ir.scalar(_SCALAR[expression.operator], *args)


def _binary(op: str, a: Node, b: Node) -> Map:
    return (
        Map(ir.scalar(op, ir.arg(0), ir.arg(1)), (a, b)) if a != b else Map(ir.scalar(op, ir.arg(0), ir.arg(0)), (a,))
    )
