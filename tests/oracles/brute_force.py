"""The laws by brute force: on one small hierarchy at a time, by their definition, in rationals.

`confirm` rebuilds a counterexample and asserts that the law fails on it. What is proved is tried by the judges of the
fuzz, on every hierarchy of the tests (`corpus/test_judges.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from fuzz import witnesses
from fuzz.judges import kernel_laws
from fuzz.judges.judge import attempt

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    advantage,
    gated,
    identity_gate,
    residual,
    token_log_ratio,
)
from fibration.language.atoms import Component, Count, Density, Stratum, Total, in_channel
from fibration.language.expressions import Expression
from fibration.language.report import LEFT, Verdict
from fibration.language.traversal import atoms
from oracles.definition import (
    NO_VALUE,
    WHOLE,
    ZERO,
    Dual,
    Formulas,
    World,
    inside,
    real,
    slope,
    transcendental,
    truth,
)

F = Fraction
TINY = F(1, 10**30)
x = token_log_ratio


def back(h: Hierarchy, world: World, leaf: Stratum, element: int = 0, at: Fraction = ZERO) -> Dual:
    """`R(F(r))` at one log ratio, with the slope that the chain rule through the declared branches gives it."""
    run = Formulas()
    here = {c: run(h.with_mass(d, leaf), lambda a: Dual(at, F(1)) if a == x else Dual(world.atom(a, leaf, element)))
            for c, d in h.decomposition.densities}  # fmt: skip
    bound = {gated(c): v for c, v in here.items()}
    recovery = h.with_mass(h.decomposition.recovery, leaf)
    return run(recovery, lambda a: bound[a] if a in bound else Dual(world.atom(a, leaf, element)))


def pushed_along(
    world: World, xs: Sequence[Fraction], way: Sequence[Fraction], advantages: Sequence[Fraction]
) -> Fraction:
    """`Σ c_i·d_i`, the declared slope of `J` along a direction; of a score estimator that of its log-probabilities."""
    found = world.run([Dual(at, d) for at, d in zip(xs, way, strict=True)], advantages, Formulas()).ratio
    weights = [world.mu(i) * a for i, a in enumerate(advantages)]
    if world.h.objective.estimator == "score":
        return sum((w * g.value * d for w, g, d in zip(weights, found, way, strict=True)), F(0))
    return sum((w * g.slope for w, g in zip(weights, found, strict=True)), F(0))


def coefficients(world: World, xs: Sequence[Fraction], advantages: Sequence[Fraction]) -> list[Fraction]:
    """`∂J/∂log π` of every token."""
    n = range(len(xs))
    return [pushed_along(world, xs, [F(i == k) for i in n], advantages) for k in n]


# ---------------------------------------------------------------- counterexamples, checked again


def world_of(h: Hierarchy, verdict: Verdict) -> World:
    c = verdict.counterexample.concrete  # type: ignore[union-attr]
    assert c is not None, f"{verdict.law}: the counterexample has no hierarchy"
    return World(h, c.size, c.maps, {**c.attributes, **c.parameters})


def confirm(h: Hierarchy, verdict: Verdict, all_verdicts: Iterable[Verdict] = ()) -> None:
    """Rebuild the counterexample of a refuted verdict; AssertionError if the law holds on it."""
    assert verdict.status == "refuted", f"{verdict.law} on {verdict.subject} is {verdict.status}"
    assert verdict.counterexample is not None or verdict.law == "given_up"
    {
        "structure": _confirm_structure, "locality": _confirm_locality, "markov": _confirm_kernel,
        "reflecting": _confirm_kernel, "recovery": _confirm_recovery, "identity": _confirm_identity,
        "first_order": _confirm_first_order, "gradient": _confirm_gradient, "orthogonality": _confirm_kernel,
        "positivity": _confirm_positivity, "inward": _confirm_inward, "given_up": _confirm_given_up, "objective": _confirm_objective,
    }[verdict.law](h, verdict, list(all_verdicts))  # fmt: skip


KERNELS = {
    "markov": kernel_laws.of_weights,
    "reflecting": kernel_laws.of_sums,
    "orthogonality": kernel_laws.of_residuals,
}


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


def _confirm_kernel(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    """The weights, or what they sum to, or the residuals of the log ratio that is 1 on every token."""
    world = witnesses.world_of(h, verdict.counterexample)
    if verdict.law == "orthogonality":
        world = type(world)(h, dataclasses.replace(world.batch, x=[F(1)] * world.n), exact=True)
        if attempt(lambda: world.residual)[1] == "no value":
            return
    assert KERNELS[verdict.law](world, verdict)


def _confirm_objective(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    """The token that is named has a weight without a value, on a batch that is the counterexample's hierarchy."""
    world = world_of(h, verdict)
    assert WHOLE in verdict.counterexample.concrete.size  # type: ignore[union-attr]
    try:
        weight = h.objective.spelled_out(h.leaves, h.rows)
        value = world.value(weight, h.leaves[0], verdict.counterexample.values["element"])  # type: ignore[union-attr]
    except NO_VALUE:
        return
    raise AssertionError(f"the weight is {value}")


def _confirm_recovery(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    world, values = world_of(h, verdict), verdict.counterexample.values  # type: ignore[union-attr]
    leaf, at, element = h.leaves[0], values["log_ratio"], values["element"]
    try:
        read = set(atoms(h.decomposition.recovery))
        densities = {
            gated(c): world.value(d, leaf, element, {x: at}) for c, d in h.decomposition.densities if gated(c) in read
        }
        back = world.value(h.decomposition.recovery, leaf, element, densities)
    except NO_VALUE:
        return
    assert abs(back - truth(at)) > TINY


def _confirm_identity(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    world, values = world_of(h, verdict), verdict.counterexample.values  # type: ignore[union-attr]
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
        found |= at_zero is None or abs(at_zero) > (TINY if transcendental(gate) else 0)
        for step in (F(1, 10**12), F(1, 10**24), *(() if transcendental(gate) else (F(1, 10**48),))):
            for beside, at in ((g(sign * step), sign * step) for sign in (1, -1)):
                off = (1 + abs(ratio)) * 10**6 * step  # of a smooth gate with no large second derivative
                found |= beside is None or abs(beside / at - 1) > off
        found |= _is_kinked(world, gate, stratum, values)
    assert found, f"{verdict.counterexample}"


def _is_kinked(world: World, gate: Expression, stratum: Stratum, values: Any) -> bool:
    """Whether the declared derivative at residual 0 and density 0 is not 1."""
    at = {b: F(0) for b in atoms(gate) if b == residual or isinstance(b, Density)} | {advantage: values["advantage"]}
    try:
        at |= {b: world.atom(b, stratum, values["element"]) for b in atoms(gate) if b not in at}
        return abs(slope(gate, residual, at) - 1) > TINY
    except NO_VALUE:
        return True
    except KeyError:  # as above
        return False


def _confirm_first_order(h: Hierarchy, verdict: Verdict, others: list[Verdict]) -> None:
    values = verdict.counterexample.values  # type: ignore[union-attr]
    if "slope" in values:
        _confirm_start(h, verdict)
        return
    if "log_prob" in values:  # a score estimator has no value, whatever its gates
        assert h.objective.estimator == "score"
        return
    world = complete(h, world_of(h, verdict))
    n, rng = world.size(h.leaves[0]), random.Random(0)
    if _is_another_push(h, world, [values["advantage"]] * n):
        return
    for unit, off in ((F(1, 10**n), F(1, 10**m)) for n, m in ((12, 14), (24, 36), (40, 44))):  # not of second order
        for k in range(40):
            spread = (0, 1) if k % 4 == 0 else (-1, 0) if k % 4 == 1 else (-9, 9)
            xs = [unit * rng.randint(*spread) for _ in range(n)]
            try:
                found = world.ratios(xs, [values["advantage"]] * n)
            except NO_VALUE:
                return
            if any(abs(r - truth(at)) > off for r, at in zip(found, xs, strict=True)):
                return
    own = [values["advantage"], *[F(0)] * (n - 1)]  # equal ones cannot tell what a level hands on
    coarse = (h.gate(s) for s in h.order if s not in h.leaves)
    if not any(advantage in atoms(gate) for gate in coarse) and _is_another_push(h, world, own):
        return
    raise AssertionError(f"the operator agrees to first order on {world}")


def _is_another_push(h: Hierarchy, world: World, advantages: Sequence[Fraction]) -> bool:
    """Whether the slope at ratio 1 along a random direction is not that of `μ·A`, or has no value. The branch that holds
    there is differentiated, which may be wrong there alone.
    """
    way = [F(random.Random(k).randint(1, 10**6)) for k in range(len(advantages))]
    try:
        found = pushed_along(complete(h, world), [F(0)] * len(advantages), way, advantages)
    except NO_VALUE:
        return True
    return (
        abs(found - sum((world.mu(i) * a * d for i, (a, d) in enumerate(zip(advantages, way, strict=True))), F(0)))
        > TINY
    )


def _confirm_start(h: Hierarchy, verdict: Verdict) -> None:
    values = verdict.counterexample.values  # type: ignore[union-attr]
    leaf = next(s for s in h.leaves if s.name == values["leaf"])
    try:
        found = back(h, world_of(h, verdict), leaf, at=values["log_ratio"])
    except NO_VALUE:
        return
    assert any(abs(v - 1) > (F(1, 10**6) if values["log_ratio"] else TINY) for v in (found.value, found.slope))


def _confirm_gradient(h: Hierarchy, verdict: Verdict, others: list[Verdict]) -> None:
    """Coefficients that are not `μ·A`, for advantages that are constant on rows."""
    values = verdict.counterexample.values  # type: ignore[union-attr]
    if verdict.subject == "decomposition":
        _confirm_start(h, verdict)
        return
    world, advantages = complete(h, world_of(h, verdict)), values["advantages"]
    is_rest = verdict.subject.startswith(LEFT)
    of_row = {(world.below(leaf, i, h.rows), a) for (leaf, i), a in zip(world.tokens, advantages, strict=True)}
    assert len(of_row) == world.size(h.rows)
    try:
        found = coefficients(world, values["log_ratios"], advantages)
    except NO_VALUE:
        assert values["coefficients"] is None
        return
    expected = [world.mu(i) * a for i, a in enumerate(advantages)]
    assert values["true"] == tuple(expected)
    if values["coefficients"] is None:  # a root of 0 has the slope 0·inf: NaN in the operator, 0 in a dual number
        assert "sqrt" in repr(h)
        return
    assert all(abs(c - w) <= TINY for c, w in zip(found, values["coefficients"], strict=True))
    close = F(1, 10**6) if any(values["log_ratios"]) else TINY
    assert any(abs(c - t) > close for c, t in zip(found, expected, strict=True))
    if is_rest:
        given = {r for r, a in of_row if a}
        assert len(given) == 1 and sum(c * a for c, a in zip(found, advantages, strict=True)) < -close


def complete(h: Hierarchy, world: World) -> World:
    """The same tree, with values for the attributes and parameters that a counterexample does not name."""
    some = dict(next(worlds_for(h, (1,))).values)
    for a, v in some.items():
        if isinstance(a, Attribute):
            some[a] = [v[i % len(v)] for i in range(world.size(a.on))]
    return World(h, world.sizes, world.parents, {**some, **world.values})


def _confirm_positivity(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    world, values = world_of(h, verdict), verdict.counterexample.values  # type: ignore[union-attr]
    xs = values["log_ratios"] if "log_ratios" in values else [real("log", values["ratio"])]
    try:
        found = world.ratios(xs, [values["advantage"]] * len(xs))
    except NO_VALUE:
        return
    assert min(found) <= TINY, found


def _confirm_inward(h: Hierarchy, verdict: Verdict, _: list[Verdict]) -> None:
    """Coefficients as they are said to be, and a level that passes on its pull so that it goes further out."""
    of_split = verdict.subject.endswith("decomposition")
    h = h.replace(gates=dict.fromkeys(h.order, identity_gate()), advantages=None) if of_split else h
    world, values = world_of(h, verdict), verdict.counterexample.values  # type: ignore[union-attr]
    xs = values["log_ratios"] if "log_ratios" in values else [real("log", r) for r in values["ratios"]]
    advantages, close = values["advantages"], F(1, 10**25)
    found = coefficients(world, xs, advantages)
    assert all(abs(a - b) <= close for a, b in zip(found, values["coefficients"], strict=True))
    if "token" in values:
        k = values["token"]
        assert of_split or world.ratios(xs, advantages)[k] < 0
        assert found[k] * xs[k] > 0 > advantages[k] * xs[k]
        return
    ungated = [world.mu(i) * a * truth(x_) for i, (a, x_) in enumerate(zip(advantages, xs, strict=True))]
    assert all(abs(a - b) <= close for a, b in zip(ungated, values["ungated"], strict=True))
    stratum = next(s for s in h.strata if s.name == values["stratum"])
    rho, slope_, pull_ = level(world, stratum, values["channel"], values["element"], xs, advantages)
    assert abs(rho - values["residual"]) <= close
    assert slope_ * pull_ * rho > 0, "it is not pushed further out"
    if values["what"] == "turned":
        assert slope_ < 0
        return
    assert slope_ > 0
    if values["what"] == "lost":  # with the other sign it is stopped on the way back
        _, back, _ = level(world, stratum, values["channel"], values["element"], xs, values["beside"])
        assert back <= 0
        return
    nearer = values["beside"] if "log_ratios" in values else [real("log", r) for r in values["beside"]]
    rho_, stopped, _ = level(world, stratum, values["channel"], values["element"], nearer, advantages)
    assert 0 < rho_ / rho < 1
    assert stopped <= 0


def level(world: World, stratum: Stratum, channel: str, element: int, xs: Any, advantages: Any) -> Any:
    """Of a gate at an element, its residual, its slope there, and what pulls it."""
    h, n = world.h, len(xs)
    inside = [k for k, (leaf, i) in enumerate(world.tokens) if world.below(leaf, i, stratum) == element]
    for k in inside:
        moved = world.run([Dual(x_, F(i == k)) for i, x_ in enumerate(xs)], advantages, Formulas())
        rho, gated_ = moved.residual[stratum, channel][element], moved.gated[stratum, channel][element]
        if rho.slope:
            break
    if any(isinstance(a, Density) for a in atoms(in_channel(h.gate(stratum), channel))):
        read = {a: moved.density[a.stratum, a.channel or channel][world.below(stratum, element, a.stratum)].value
                for a in atoms(in_channel(h.gate(stratum), channel)) if isinstance(a, Density)}  # fmt: skip
        steep = gate_slope(world, stratum, channel, element, {**read, residual: rho.value, advantage: advantages[k]})
    else:
        steep = gated_.slope / rho.slope
    back_ = h.with_mass(h.decomposition.recovery, world.tokens[k][0])
    at = {gated(c): h.with_mass(h.decomposition[c], world.tokens[k][0]) for c in h.decomposition.channels}
    at = {g: world.value(e, *world.tokens[k], {x: xs[k], advantage: advantages[k]}) for g, e in at.items()}
    at |= {b: world.atom(b, *world.tokens[k]) for b in atoms(back_) if b not in at and b != advantage}
    up = slope(back_, gated(channel), {**at, advantage: advantages[k]})
    return rho.value, steep, up * sum((world.mu(i) * advantages[i] * truth(xs[i]) for i in inside), F(0)) if n else 0


def gate_slope(world: World, stratum: Stratum, channel: str, element: int, bound: Any) -> Fraction:
    gate = in_channel(world.h.gate(stratum), channel)
    at = {b: world.atom(b, stratum, element) for b in atoms(gate) if b not in bound and b != residual}
    return slope(gate, residual, {**at, **bound})


def _confirm_given_up(h: Hierarchy, verdict: Verdict, others: list[Verdict]) -> None:
    law, _, about = verdict.subject.removeprefix("law '").removesuffix("'").partition(" of ")
    assert all(v.status == "proved" for v in others if v.law == law and (not about or v.subject.endswith(about)))


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
        return inside(low, high, F(next(number) * 7 % 11 + 1, 13))

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
            of_attributes = {
                a: [some(0 if a.positive and a.lower is None else a.lower, a.upper) for _ in range(size[a.on])]
                for a in attributes
            }
            of_parameters = {a: some(p.lower, p.upper) for a, p in sorted(parameters.items(), key=lambda i: str(i[0]))}
            yield World.chain(h, parents, {**of_attributes, **of_parameters})


def _formulas(h: Hierarchy) -> Iterator[Expression]:
    yield from (f.weight for f in h.fibrations)
    yield from (in_channel(h.gate(s), c) for s in h.strata for c in h.decomposition.channels)
    yield from (d for _, d in h.decomposition.densities)
    yield h.decomposition.recovery
    yield h.objective.weight
