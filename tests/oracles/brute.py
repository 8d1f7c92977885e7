"""The laws by brute force, on one small hierarchy at a time.

`World` holds such a hierarchy in rationals. Formulas are evaluated by `fibration.language.traversal.evaluate`, which knows
nothing of sympy; sums over fibres, weights, the dense operator of eq:fgh_gating and derivatives are written out here.
`confirm` rebuilds a counterexample and asserts that the law fails on it; `uphold` tries a proved law on small worlds.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from support import interpreted

from fibration import Attribute, Fibration, Hierarchy, Parameter, advantage, exp, gated, log, residual, token_log_ratio
from fibration.compiler.interpret import Sizes
from fibration.language.atoms import Component, Count, Density, Place, Stratum, Total, in_channel
from fibration.language.exact import NoValue
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.report import Verdict
from fibration.language.traversal import atoms, evaluate
from fibration.pipeline import build

F = Fraction
NO_VALUE = (NoValue, ZeroDivisionError)
TINY = F(1, 10**30)
x = token_log_ratio


# ---------------------------------------------------------------- one small hierarchy


@dataclass(frozen=True)
class World:
    """Who lies over whom, root first, and the values of attributes and parameters."""

    chain: tuple[Stratum, ...]
    parents: Mapping[Stratum, Sequence[int]]
    attributes: Mapping[Attribute, Sequence[Fraction]] = field(default_factory=dict)
    parameters: Mapping[Expression, Fraction] = field(default_factory=dict)
    roots: int = 1

    def size(self, stratum: Stratum) -> int:
        return len(self.parents[stratum]) if stratum in self.parents else self.roots

    def below(self, stratum: Stratum, element: int, target: Stratum) -> int:
        depth = self.chain.index(stratum)
        assert self.chain.index(target) <= depth, f"{stratum} does not lie over {target}"
        while self.chain[depth] != target:
            element, depth = self.parents[self.chain[depth]][element], depth - 1
        return element

    def over(self, source: Stratum, target: Stratum, element: int) -> list[int]:
        if (source, target) not in self._lists:
            lists: list[list[int]] = [[] for _ in range(self.size(target))]
            for a in range(self.size(source)):
                lists[self.below(source, a, target)].append(a)
            self._lists[source, target] = lists
        return self._lists[source, target][element]

    @cached_property
    def _lists(self) -> dict[tuple[Stratum, Stratum], list[list[int]]]:
        return {}

    def atom(self, a: Expression, stratum: Stratum, element: int) -> Fraction:
        if isinstance(a, Count):
            return F(len(self.over(a.of, a.over, self.below(stratum, element, a.over))))
        if isinstance(a, Total):
            inside = self.over(a.attribute.on, a.over, self.below(stratum, element, a.over))
            return sum((F(self.attributes[a.attribute][i]) for i in inside), F(0))
        if isinstance(a, Attribute):
            return F(self.attributes[a][self.below(stratum, element, a.on)])
        return F(self.parameters[a])

    def value(self, e: Expression, stratum: Stratum, element: int, bound: Mapping[Expression, Fraction] = {}) -> Any:
        return evaluate(e, lambda a: bound[a] if a in bound else self.atom(a, stratum, element))

    def weights(self, f: Fibration) -> list[Fraction | None]:
        """`K(a|b)` of every source element; None where the formula has no value."""
        result: list[Fraction | None] = []
        for a in range(self.size(f.source)):
            try:
                result.append(self.value(f.weight, f.source, a))
            except NO_VALUE:
                result.append(None)
        return result

    def fibre_sums(self, f: Fibration) -> list[Fraction | None]:
        sums: list[Fraction | None] = []
        weights = self.weights(f)
        for b in range(self.size(f.target)):
            inside = [weights[a] for a in self.over(f.source, f.target, b)]
            sums.append(None if None in inside else sum(inside, F(0)))  # type: ignore[arg-type]
        return sums


def rounds(*expressions: Expression) -> bool:
    """Whether values are only correct to fifty digits."""
    return any(isinstance(e, Apply) and (e.operator in _SLOPE or rounds(*e.arguments)) for e in expressions)


# ---------------------------------------------------------------- the operator, densely (eq:fgh_gating)


def push(world: World, source: Stratum, target: Stratum, density_: Sequence[Fraction]) -> list[Fraction]:
    return [sum((density_[a] for a in world.over(source, target, b)), F(0)) for b in range(world.size(target))]


def residuals(h: Hierarchy, world: World, leaf_density: Sequence[Fraction]) -> dict[Stratum, list[Fraction]]:
    """`ρ_k = π_{k←n*} σ - K_{k-1} π_{k-1←n*} σ` on every stratum."""
    leaf = world.chain[-1]
    result = {world.chain[0]: push(world, leaf, world.chain[0], leaf_density)}
    for below, stratum in zip(world.chain, world.chain[1:], strict=False):
        own, base = (push(world, leaf, s, leaf_density) for s in (stratum, below))
        k = world.weights(h.shape.below(stratum)[0])
        result[stratum] = [own[a] - k[a] * base[world.parents[stratum][a]] for a in range(len(own))]  # type: ignore[operator]
    return result


def reflected(h: Hierarchy, world: World, stratum: Stratum) -> list[list[Fraction]]:
    """The matrix of `K_{n←k}`: one row per leaf element."""
    rows = [[F(i == j) for j in range(world.size(stratum))] for i in range(world.size(stratum))]
    depth = world.chain.index(stratum)
    for above in world.chain[depth + 1 :]:
        k = world.weights(h.shape.below(above)[0])
        rows = [[k[a] * v for v in rows[world.parents[above][a]]] for a in range(world.size(above))]  # type: ignore[operator]
    return rows


def ratios(h: Hierarchy, world: World, xs: Sequence[Fraction], advantages: Sequence[Fraction] = ()) -> list[Fraction]:
    """`R(G(F(r)))` of every token, from the definition, in rationals where the formulas are."""
    leaf, n = world.chain[-1], len(xs)
    sigma, rho = {}, {}
    for channel in h.decomposition.channels:
        sigma[channel] = [world.value(h.decomposition[channel], leaf, i, {x: xs[i]}) for i in range(n)]
        rho[channel] = residuals(h, world, sigma[channel])
    down = {c: [F(0)] * n for c in h.decomposition.channels}
    for stratum in world.chain:
        matrix = reflected(h, world, stratum)
        coarser = world.chain[: world.chain.index(stratum)]
        for channel in h.decomposition.channels:
            gate = in_channel(h.gate(stratum), channel)
            level = []
            for e in range(world.size(stratum)):
                bound: dict[Expression, Fraction] = {residual: rho[channel][stratum][e]}
                inside = world.over(leaf, stratum, e)
                bound[advantage] = advantages[inside[0]] if advantages else F(1)
                for s, c in itertools.product(coarser, h.decomposition.channels):
                    bound[Density(s, c)] = push(world, leaf, s, sigma[c])[world.below(stratum, e, s)]
                level.append(world.value(gate, stratum, e, bound))
            for i in range(n):
                down[channel][i] += sum((m * v for m, v in zip(matrix[i], level, strict=True)), F(0))
    return [world.value(h.decomposition.recovery, leaf, i, {gated(c): down[c][i] for c in down}) for i in range(n)]


# ---------------------------------------------------------------- the lowered program, in float64


@functools.cache
def programs(h: Hierarchy) -> Mapping[str, Any]:
    return build(h)


class Numeric:
    """The programs of a hierarchy on one world, through the interpreter."""

    def __init__(self, h: Hierarchy, world: World) -> None:
        self.h, self.world = h, world
        self.stratum = {s.name: s for s in world.chain}
        self.fixed: dict[str, tuple[dict[str, Any], Sizes]] = {}

    def size(self, name: str) -> int:
        return self.world.size(self.stratum[name]) if name in self.stratum else 1

    def run(self, name: str, xs: Any, advantages: Any = None, **more: Any) -> dict[str, Any]:
        program = programs(self.h)[name]
        if name not in self.fixed:
            self.fixed[name] = self._fixed(program)
        inputs, sizes = self.fixed[name]
        a = np.ones(len(xs)) if advantages is None else np.asarray(advantages, float)
        varying = {program.given[n]: self.read(n, a) for n in program.inputs if n.kind == "advantage"}
        return interpreted(program, {**inputs, **varying, "log_ratio": np.asarray(xs, float), **more}, sizes)

    def _fixed(self, program: Any) -> tuple[dict[str, Any], Sizes]:
        """What does not change from call to call: counts, attributes, parameters, who lies over whom."""
        kinds = ("log_ratio", "cotangent", "advantage")
        inputs = {program.given[n]: self.read(n, None) for n in program.inputs if n.kind not in kinds}
        parents = {}
        for source, target in program.edges:
            whole = target not in self.stratum or source not in self.stratum
            a, b = self.stratum.get(source), self.stratum.get(target)
            below = [0 if whole else self.world.below(a, e, b) for e in range(self.size(source))]
            parents[source, target] = np.array(below, int)
        names = {self.world.chain[-1].name, "batch", self.h.rows.name, *self.stratum}
        return inputs, Sizes(parents, {s: self.size(s) for s in names})

    def read(self, node: Any, advantages: Any) -> Any:
        world, here = self.world, self.stratum.get(node.over)
        if node.kind == "advantage":
            return np.array([advantages[world.over(world.chain[-1], here, e)[0]] for e in range(world.size(here))])
        if node.kind == "count":
            of, over = node.key
            if over not in self.stratum:
                return np.array([self.size(of)])
            inside = (world.over(self.stratum[of], self.stratum[over], e) for e in range(self.size(over)))
            return np.array([len(i) for i in inside])
        if node.kind in ("total", "attribute"):
            a = next(a for a in world.attributes if a.name == node.key[0])
            values = [float(v) for v in world.attributes[a]]
            return np.array([sum(values[i] for i in world.over(a.on, here, e)) for e in range(world.size(here))])
        name, channel = node.key
        for p, v in world.parameters.items():
            if (p.parameter.name, p.channel) == (name, channel) if isinstance(p, Component) else p.name == name:
                return np.full(self.size(node.over), float(v))
        raise KeyError(node.name)

    def ratio(self, xs: Any, advantages: Any = None) -> Any:
        return self.run("gate", xs, advantages)["gated_ratio"]

    def jacobian(self, xs: Any, advantages: Any = None) -> Any:
        """`∂𝒢_i/∂x_j`, one row per token `i`."""
        rows = np.eye(len(xs))
        return np.array([self.run("gate_adjoint", xs, advantages, cotangent=e)["log_ratio_gradient"] for e in rows])


# ---------------------------------------------------------------- derivatives in the branch that holds

_SLOPE = {
    "exp": lambda a, y: y, "expm1": lambda a, y: y + 1, "log": lambda a, y: 1 / a, "log1p": lambda a, y: 1 / (1 + a),
    "tanh": lambda a, y: 1 - y * y, "sigmoid": lambda a, y: y * (1 - y), "sqrt": lambda a, y: 1 / (2 * y),
    "softplus": lambda a, y: 1 - evaluate(exp(-x), {x: y}), "atan": lambda a, y: 1 / (1 + a * a),
}  # fmt: skip


def dual(e: Expression, variable: Expression, at: Mapping[Expression, Fraction]) -> tuple[Fraction, Fraction]:
    """Value and derivative with respect to one atom."""
    if isinstance(e, Number):
        return e.value, F(0)
    if not isinstance(e, Apply):
        return at[e], F(e == variable)
    op = e.operator
    if op == "where":
        condition, a, b = e.arguments
        return dual(a if evaluate(condition, at) else b, variable, at)
    if op == "abs":
        value, slope = dual(e.arguments[0], variable, at)
        return (value, slope) if value >= 0 else (-value, -slope)
    if op == "clip":
        value, low, high = (dual(a, variable, at) for a in e.arguments)
        return low if value[0] < low[0] else high if value[0] > high[0] else value
    (a, da), *rest = (dual(arg, variable, at) for arg in e.arguments)
    if op == "neg":
        return -a, -da
    if op in _SLOPE:
        y = evaluate(Apply(op, (Number(a),)), {})
        return y, _SLOPE[op](a, y) * da if da else F(0)
    ((b, db),) = rest
    if op in ("minimum", "maximum"):
        return (a, da) if (a <= b if op == "minimum" else a >= b) else (b, db)
    if op == "**":
        return a ** int(b), int(b) * a ** (int(b) - 1) * da
    return {
        "+": lambda: (a + b, da + db),
        "-": lambda: (a - b, da - db),
        "*": lambda: (a * b, da * b + a * db),
        "/": lambda: (a / b, (da * b - a * db) / (b * b)),
    }[op]()


def slope_at_one(h: Hierarchy, world: World, element: int = 0) -> Fraction:
    """`d R(F(r))/dx` at exactly `x = 0`, as the chain rule through the declared branches gives it."""
    leaf = world.chain[-1]
    known = {
        a: world.atom(a, leaf, element)
        for e in (h.decomposition.recovery, *(d for _, d in h.decomposition.densities))
        for a in atoms(e)
        if a != x and not isinstance(a, type(gated("")))
    }
    parts = {c: dual(d, x, {**known, x: F(0)}) for c, d in h.decomposition.densities}
    at = {**known, **{gated(c): v for c, (v, _) in parts.items()}}
    return sum((dual(h.decomposition.recovery, gated(c), at)[1] * s for c, (_, s) in parts.items()), F(0))


# ---------------------------------------------------------------- counterexamples, checked again


def world_of(verdict: Verdict) -> World:
    c = verdict.counterexample.concrete  # type: ignore[union-attr]
    assert c is not None, f"{verdict.law}: the counterexample has no hierarchy"
    return World(c.chain, c.parents, c.attributes, c.parameters)


def confirm(h: Hierarchy, verdict: Verdict, all_verdicts: Iterable[Verdict] = ()) -> None:
    """Rebuild the counterexample of a refuted verdict; AssertionError if the law holds on it."""
    assert verdict.status == "refuted", f"{verdict.law} on {verdict.subject} is {verdict.status}"
    assert verdict.counterexample is not None or verdict.law == "given_up"
    {
        "structure": _confirm_structure, "locality": _confirm_locality, "markov": _confirm_markov,
        "reflecting": _confirm_reflecting, "recovery": _confirm_recovery, "identity": _confirm_identity,
        "first_order": _confirm_first_order, "orthogonality": _confirm_orthogonality,
        "positivity": _confirm_positivity, "given_up": _confirm_given_up, "objective": _confirm_objective,
    }[verdict.law](h, verdict, list(all_verdicts))  # fmt: skip


def _edge(h: Hierarchy, verdict: Verdict) -> Fibration:
    return next(f for f in h.fibrations if f.name in verdict.subject or verdict.subject == f"residual on {f.source}")


def _confirm_structure(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    pairs = [(f.source, f.target) for f in h.fibrations]
    reach = {s: {t for a, t in pairs if a == s} for s in h.strata}
    for _ in h.strata:
        reach = {s: ts.union(*(reach[t] for t in ts)) if ts else ts for s, ts in reach.items()}
    part, frontier = {h.strata[0]}, [h.strata[0]]
    while frontier:
        here = frontier.pop()
        near = {b for a, b in pairs if a == here} | {a for a, b in pairs if b == here}
        frontier += near - part
        part |= near
    cyclic = any(s in reach[s] for s in h.strata)
    twice = len(set(pairs)) < len(pairs)
    assert cyclic or twice or part != set(h.strata) or h.rows in h.leaves


def _confirm_locality(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    """Some atom has no one value at an element: what it is read at is neither the element nor below it."""
    kind, _, rest = verdict.subject.partition(" ")
    if kind in ("decomposition", "recovery"):
        expressions = (
            [d for _, d in h.decomposition.densities] if kind == "decomposition" else [h.decomposition.recovery]
        )
        expressions = [*expressions, h.decomposition.scale]
        here, reads = h.leaves[0], {x} if kind == "decomposition" else {gated(c) for c in h.decomposition.channels}
    elif kind == "kernel":
        f = next(f for f in h.fibrations if f.name == rest)
        expressions, here, reads = [f.weight], f.source, set()
    else:
        here = next(s for s in h.strata if s.name == rest.removeprefix("on "))
        expressions, reads = [h.gate(here)], {residual, advantage}
    below = [here]
    while h.shape.below(below[-1]):
        below.append(h.shape.below(below[-1])[0].target)

    def allowed(a: Expression) -> bool:
        if a in reads:
            sees_rows = here == h.leaves[0] or here == h.rows or (h.rows in below)
            return a != advantage or sees_rows
        if isinstance(a, (Parameter, Component)):
            p = a.parameter if isinstance(a, Component) else a
            if kind in ("decomposition", "recovery"):
                return False
            places = below[1:] if kind == "kernel" else below
            one = len(h.decomposition.channels) == 1
            return (p.on is None or p.on in places) and not (p.per_channel and (one or kind == "kernel"))
        if isinstance(a, (Count, Total)):
            return a.over in below
        if isinstance(a, Attribute):
            return a.on in below
        channel = getattr(a, "channel", None) in (None, *h.decomposition.channels)
        return kind == "gate" and isinstance(a, Density) and a.stratum in below[1:] and channel

    assert not all(allowed(a) for e in expressions for a in atoms(e)), verdict.subject


def _confirm_markov(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    f, world = _edge(h, verdict), world_of(verdict)
    found = world.weights(f)[verdict.counterexample.values["source"]]  # type: ignore[union-attr]
    assert found is None or found < -(TINY if rounds(f.weight) else 0)


def _confirm_reflecting(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    f, world = _edge(h, verdict), world_of(verdict)
    found = world.fibre_sums(f)[verdict.counterexample.values["element"]]  # type: ignore[union-attr]
    assert found is None or abs(found - 1) > (TINY if rounds(f.weight) else 0)


def _confirm_orthogonality(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    """`π_* ρ` of the density that is 1 on every leaf, on the counterexample's hierarchy."""
    f, world = _edge(h, verdict), world_of(verdict)
    if None in world.weights(f):
        return
    own = [F(len(world.over(world.chain[-1], f.source, a))) for a in range(world.size(f.source))]
    base = push(world, f.source, f.target, own)
    k = world.weights(f)
    rho = [own[a] - k[a] * base[world.parents[f.source][a]] for a in range(len(own))]  # type: ignore[operator]
    assert any(abs(v) > TINY for v in push(world, f.source, f.target, rho))


def _confirm_objective(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    """The token that is named has a weight without a value, on a batch that is the counterexample's hierarchy."""
    world = world_of(verdict)
    assert world.chain[0].name == "batch"
    try:
        weight = h.objective.spelled_out(h.leaves, h.rows)
        value = world.value(weight, h.leaves[0], verdict.counterexample.values["element"])  # type: ignore[union-attr]
    except NO_VALUE:
        return
    raise AssertionError(f"the weight is {value}")


def _confirm_recovery(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    world, at = world_of(verdict), verdict.counterexample.values["log_ratio"]  # type: ignore[union-attr]
    leaf = world.chain[-1]
    try:
        read = set(atoms(h.decomposition.recovery))
        densities = {
            gated(c): world.value(d, leaf, 0, {x: at}) for c, d in h.decomposition.densities if gated(c) in read
        }
        back = world.value(h.decomposition.recovery, leaf, 0, densities)
    except NO_VALUE:
        return
    assert abs(back - evaluate(exp(x), {x: at})) > TINY


def _confirm_identity(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    world, values = world_of(verdict), verdict.counterexample.values  # type: ignore[union-attr]
    stratum = next(s for s in h.strata if s.name == values["stratum"])
    found = False
    for channel in h.decomposition.channels:
        gate = in_channel(h.gate(stratum), channel)
        read = [a for a in atoms(gate) if isinstance(a, Density)]
        ratio = values["densities"]  # of densities to the residual, or the densities where the residual is 0

        def g(rho: Fraction, gate: Expression = gate, read: Any = read, ratio: Any = ratio) -> Fraction | None:
            try:
                others = dict.fromkeys(read, abs(rho) * ratio if rho else ratio)
                bound = {residual: rho, advantage: values["advantage"], **others}
                return world.value(gate, stratum, values["element"], bound)
            except NO_VALUE:
                return None
            except KeyError:  # a budget of the other channel, which the counterexample does not name
                return rho

        at_zero = g(F(0))
        found |= at_zero is None or abs(at_zero) > (TINY if rounds(gate) else 0)
        for step in (F(1, 10**12), -F(1, 10**12), F(1, 10**24), -F(1, 10**24)):
            beside = g(step)
            found |= beside is None or abs(beside / step - 1) > (1 + abs(ratio)) / 10**6
    assert found, f"{verdict.counterexample}"


def _confirm_first_order(h: Hierarchy, verdict: Verdict, others: list[Verdict]) -> None:
    values = verdict.counterexample.values  # type: ignore[union-attr]
    if "slope" in values:
        slopes = [slope_at_one(h, world) for world in worlds_for(h, sizes=(1, 2, 3))]
        assert any(s != 1 for s in slopes)
        return
    if "log_prob" in values:  # a score estimator has no value, whatever its gates
        assert h.objective.estimator == "score"
        return
    world = complete(h, world_of(verdict))
    if verdict.subject == "gradient":
        n = world.size(world.chain[-1])
        assert ratios(h, world, [F(0)] * n, [values["advantage"]] * n) != [1] * n
        return
    n, rng = world.size(world.chain[-1]), random.Random(0)
    for unit in (F(1, 10**12), F(1, 10**24)):
        for k in range(40):
            spread = (0, 1) if k % 4 == 0 else (-1, 0) if k % 4 == 1 else (-9, 9)
            xs = [unit * rng.randint(*spread) for _ in range(n)]
            try:
                found = ratios(h, world, xs, [values["advantage"]] * n)
            except NO_VALUE:
                return
            if any(abs(r - evaluate(exp(x), {x: at})) > 9 * unit / 10**3 for r, at in zip(found, xs, strict=True)):
                return
    raise AssertionError(f"the operator agrees to first order on {world}")


def complete(h: Hierarchy, world: World) -> World:
    """The same tree, with values for the attributes and parameters that a counterexample does not name."""
    some = next(worlds_for(h, (1,)))
    attributes = {a: [v[i % len(v)] for i in range(world.size(a.on))] for a, v in some.attributes.items()}
    return World(
        world.chain, world.parents, {**attributes, **world.attributes}, {**some.parameters, **world.parameters}
    )


def _confirm_positivity(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    world, values = world_of(verdict), verdict.counterexample.values  # type: ignore[union-attr]
    log_r = evaluate(log(x), {x: values["ratio"]})
    try:
        value = ratios(h, world, [log_r], [values["advantage"]])[0]
    except NO_VALUE:
        return
    assert value <= TINY, value


def _confirm_given_up(h: Hierarchy, verdict: Verdict, others: list[Verdict]) -> None:
    law = verdict.subject.removeprefix("law '").removesuffix("'")
    assert all(v.status == "proved" for v in others if v.law == law)


# ---------------------------------------------------------------- proved laws, tried


def uphold(h: Hierarchy, verdicts: Iterable[Verdict], worlds: Iterable[World], seed: int = 0) -> int:
    """Try every proved verdict on every world; AssertionError where it does not hold. Returns how many were tried."""
    rng, tried = random.Random(seed), 0
    proved = [v for v in verdicts if v.status == "proved" and v.law in _UPHELD]
    for world in worlds:
        for verdict in proved:
            try:
                _UPHELD[verdict.law](h, verdict, world, rng)
            except AssertionError as error:
                raise AssertionError(
                    f"{verdict.law} on {verdict.subject}, proved of\n{h}\nfails on {world}: {error}"
                ) from error
            tried += 1
    return tried


def _uphold_markov(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    f = _edge(h, verdict)
    for w in world.weights(f):
        assert w is not None
        assert w >= -(TINY if rounds(f.weight) else 0), w


def _uphold_reflecting(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    f = _edge(h, verdict)
    for found in world.fibre_sums(f):
        assert found is not None, "a weight has no value"
        assert abs(found - 1) <= (TINY if rounds(f.weight) else 0), found


def _uphold_orthogonality(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    f = _edge(h, verdict)
    own = [F(rng.randint(-9, 9), rng.randint(1, 9)) for _ in range(world.size(f.source))]
    base, k = push(world, f.source, f.target, own), world.weights(f)
    assert None not in k, "a weight has no value"
    rho = [own[a] - k[a] * base[world.parents[f.source][a]] for a in range(len(own))]  # type: ignore[operator]
    assert all(abs(v) <= TINY for v in push(world, f.source, f.target, rho))


def _uphold_recovery(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    leaf = world.chain[-1]
    for at in (F(0), F(1, 10**9), F(-1, 10**9), F(rng.randint(-40, 40), 11)):
        i = rng.randrange(world.size(leaf))
        densities = {gated(c): world.value(d, leaf, i, {x: at}) for c, d in h.decomposition.densities}
        back = world.value(h.decomposition.recovery, leaf, i, densities)
        assert abs(back - evaluate(exp(x), {x: at})) <= TINY, f"{at} comes back as {float(back)}"


def _uphold_identity(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    stratum = next(s for s in h.strata if f"gate on {s}" == verdict.subject)
    low = 0 if len(h.decomposition.channels) == 2 else -3
    for channel in h.decomposition.channels:
        gate = in_channel(h.gate(stratum), channel)
        read = [a for a in atoms(gate) if isinstance(a, Density)]
        for a in (F(1), F(-1), F(0)):
            element = rng.randrange(world.size(stratum))
            for size in (F(0), F(1, 7)):
                bound = {advantage: a, residual: F(0), **{d: size * rng.randint(low, 3) for d in read}}
                at_zero = world.value(gate, stratum, element, bound)
                assert abs(at_zero) <= TINY, f"g(0) = {float(at_zero)}"
            for step in (F(1, 10**15), -F(1, 10**15)):
                bound = {advantage: a, residual: step, **{d: abs(step) * rng.randint(low, 3) for d in read}}
                slope = world.value(gate, stratum, element, bound) / step
                assert abs(slope - 1) < F(1, 10**6), f"a slope of {float(slope)} at {float(step)}"
            atoms_at = {
                b: world.atom(b, stratum, element) for b in atoms(gate) if b not in (residual, advantage, *read)
            }
            at = {**atoms_at, advantage: a, residual: F(0), **dict.fromkeys(read, F(0))}
            assert abs(dual(gate, residual, at)[1] - 1) <= TINY, "the declared derivative at 0"


def _advantages(h: Hierarchy, world: World, rng: random.Random, over: Stratum) -> list[Fraction]:
    per = [F(rng.choice([-2, -1, 0, 1, 3])) for _ in range(world.size(over))]
    return [per[world.below(world.chain[-1], i, over)] for i in range(world.size(world.chain[-1]))]


def _over_rows(h: Hierarchy, world: World) -> Stratum:
    """Where an advantage may vary, for gates that read it below the tokens."""
    return h.rows if h.rows in world.chain else world.chain[-1]


def _uphold_first_order(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    n = world.size(world.chain[-1])
    unit = F(1, 10**12)
    if verdict.subject.startswith("advantages constant on each "):
        return _uphold_subspace(h, verdict, world, rng)
    if verdict.subject == "gradient":
        return _uphold_gradient(h, world, rng)
    for _ in range(2):
        xs = [unit * rng.randint(-9, 9) for _ in range(n)]
        found = ratios(h, world, xs, _advantages(h, world, rng, _over_rows(h, world)))
        exact = "every gate is the identity near 0" in verdict.argument
        for got, at in zip(found, xs, strict=True):
            error = abs(got - evaluate(exp(x), {x: at}))
            assert error <= (TINY if exact else 9 * unit / 10**6), (
                f"{float(error / unit)} units at {[float(v) for v in xs]}"
            )
    assert abs(slope_at_one(h, world, rng.randrange(n)) - 1) <= TINY, "the declared derivative of R(F(r)) at r = 1"
    return None


def _uphold_gradient(h: Hierarchy, world: World, rng: random.Random) -> None:
    """Of a score estimator `𝒢(1) = 1`; of another the derivative of `𝒢` at `r = 1`, whatever its value there."""
    n, unit = world.size(world.chain[-1]), F(1, 10**12)
    advantages = _advantages(h, world, rng, _over_rows(h, world))
    start = ratios(h, world, [F(0)] * n, advantages)
    if h.objective.estimator == "score":
        assert all(abs(g - 1) <= TINY for g in start), [float(g) for g in start]
        return
    xs = [unit * rng.randint(-9, 9) for _ in range(n)]
    moved = ratios(h, world, xs, advantages)
    assert all(abs(m - s - at) <= 9 * unit / 10**6 for m, s, at in zip(moved, start, xs, strict=True))


def _uphold_subspace(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    """The derivative of `J` from on-policy, for advantages that are constant on the named stratum."""
    coarse = next(s for s in h.order if verdict.subject.endswith(f" {s}"))
    n, unit = world.size(world.chain[-1]), F(1, 10**12)
    advantages = _advantages(h, world, rng, coarse)
    mu = [objective_weight(h, world, i) for i in range(n)]
    on_policy = ratios(h, world, [F(0)] * n, advantages)
    for _ in range(2):
        step = [unit * rng.randint(-9, 9) for _ in range(n)]
        moved = ratios(h, world, step, advantages)
        change = sum((m * a * (r - r0) for m, a, r, r0 in zip(mu, advantages, moved, on_policy, strict=True)), F(0))
        expected = sum((m * a * s for m, a, s in zip(mu, advantages, step, strict=True)), F(0))
        scale = sum((m * 3 * 9 * unit for m in mu), F(0))
        assert abs(change - expected) <= scale / 10**6, f"{float(change / unit)} for {float(expected / unit)}"


def objective_weight(h: Hierarchy, world: World, i: int) -> Fraction:
    """`μ_i`, with the batch being this one world."""
    leaf = world.chain[-1]
    row = world.below(leaf, i, h.rows) if h.rows in world.chain else None

    def atom(a: Expression) -> Fraction:
        if not isinstance(a, Count):
            return F(world.parameters.get(a, 7))
        of = {"leaf": leaf, "rows": h.rows}.get(a.of.name, a.of) if isinstance(a.of, Place) else a.of
        if isinstance(a.over, Place) and a.over.name == "rows":
            return F(len(world.over(of, h.rows, row)) if row is not None else 1)
        return F(world.size(of) if of in world.chain else 1)

    return evaluate(h.objective.weight, atom)


def _uphold_positivity(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    for size in (2, 40):
        xs = [F(rng.randint(-size, size), 7) for _ in range(world.size(world.chain[-1]))]
        found = ratios(h, world, xs, _advantages(h, world, rng, _over_rows(h, world)))
        assert all(r > 0 for r in found), [float(r) for r in found]


def _uphold_objective(h: Hierarchy, verdict: Verdict, world: World, rng: random.Random) -> None:
    for i in range(world.size(world.chain[-1])):
        try:
            objective_weight(h, world, i)
        except NO_VALUE as error:
            raise AssertionError(f"token {i} has no weight") from error


_UPHELD = {
    "markov": _uphold_markov, "reflecting": _uphold_reflecting, "orthogonality": _uphold_orthogonality,
    "recovery": _uphold_recovery, "identity": _uphold_identity, "first_order": _uphold_first_order,
    "positivity": _uphold_positivity, "objective": _uphold_objective,
}  # fmt: skip


# ---------------------------------------------------------------- small worlds for a hierarchy


def trees(depth: int, leaves: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every ordered tree of this many strata and leaves: per stratum above the root, its elements' parents."""
    if depth == 1:
        yield from [()] if leaves == 1 else []
        return
    for below in range(1, leaves + 1):
        for rest in trees(depth - 1, below):
            for fan in itertools.product(range(1, leaves + 1), repeat=below):
                if sum(fan) == leaves:
                    yield (*rest, tuple(b for b, n in enumerate(fan) for _ in range(n)))


def worlds_for(h: Hierarchy, sizes: Iterable[int] = (1, 2, 3, 4, 5), seed: int = 0) -> Iterator[World]:
    """All small trees, with some rational attributes and parameters inside their bounds."""
    number = itertools.count(seed)

    def some(low: float | None, high: float | None) -> Fraction:
        t = F(next(number) * 7 % 11 + 1, 13)
        if low is not None and high is not None:
            return F(str(low)) + (F(str(high)) - F(str(low))) * t
        return F(str(low)) + 2 * t if low is not None else F(str(high)) - 2 * t if high is not None else 4 * t - 2

    read = {a for e in _formulas(h) for a in atoms(e)}
    parameters: dict[Expression, Parameter] = {}
    for a in read:
        if isinstance(a, Component):
            parameters[a] = a.parameter
        elif isinstance(a, Parameter):
            parameters[a] = a
    attributes = {a.attribute if isinstance(a, Total) else a for a in read if isinstance(a, (Attribute, Total))}
    for leaves in sizes:
        for tree in trees(len(h.order), leaves if len(h.order) > 1 else 1):
            parents = dict(zip(h.order[1:], tree, strict=True))
            size = {h.order[0]: 1, **{s: len(p) for s, p in parents.items()}}
            yield World(
                h.order,
                parents,
                {a: [some(0 if a.positive else None, None) for _ in range(size[a.on])] for a in attributes},
                {a: some(p.lower, p.upper) for a, p in sorted(parameters.items(), key=lambda i: str(i[0]))},
            )


def _formulas(h: Hierarchy) -> Iterator[Expression]:
    yield from (f.weight for f in h.fibrations)
    yield from (in_channel(h.gate(s), c) for s in h.strata for c in h.decomposition.channels)
    yield from (d for _, d in h.decomposition.densities)
    yield h.decomposition.recovery
