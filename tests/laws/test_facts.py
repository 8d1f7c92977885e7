"""Certified facts against numbers: the float64 interpreter on random and on adversarial batches.

Bounds are never exceeded, and approached; inside the radius nothing changes, just outside something does; jumps,
falling slopes and blocks are where the report says, and nowhere else.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hierarchies import quivers, zoo
from hierarchies.right import RIGHT, SHIPPED, SUBSPACES
from hierarchies.zoo import T, budget, chain, domain, epsilon, one, prompt_group, token, trajectory, two
from oracles import brute
from oracles.brute import Numeric, World
from oracles.fact_text import interval, number, parameter_values

from fibration import (
    Decomposition,
    Gate,
    Parameter,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    density,
    exp,
    expm1,
    gated,
    identity_gate,
    load,
    log_ratio,
    pessimistic_clip_gate,
    proportional,
    ratio_deviation,
    residual,
    signed_log_ratio,
    tanh,
    token_log_ratio,
    uniform,
    where,
    zero_gate,
)
from fibration.compiler.ir import Mix
from fibration.compiler.lower import lower
from fibration.language.atoms import Component, Stratum, in_channel
from fibration.language.traversal import evaluate
from fibration.laws.proof.reach import is_effect

x = token_log_ratio


@functools.cache
def report(h):
    return h.verify()


def facts(h, name):
    return {f.subject: f.value for f in report(h).facts if f.name == name}


# ---------------------------------------------------------------- batches


def forest(h, fans, roots=1, **given):
    """A regular hierarchy: `fans` elements over each, root first; parameters at their defaults, or as given."""
    parents, width = {}, roots
    for stratum, fan in zip(h.order[1:], fans, strict=True):
        parents[stratum] = [i for i in range(width) for _ in range(fan)]
        width *= fan
    return World(h.order, parents, {}, settings_of(h, given), roots)


def settings_of(h, given):
    values = parameter_values(h, **given)
    found = {}
    for p in h.parameters.values():
        for c in ("", "+", "-"):
            if c and p.per_channel:
                found[Component(p, c)] = Fraction(repr(values[f"{p.name}[{c}]"]))
        if not p.per_channel:
            found[p] = Fraction(repr(values[p.name]))
    return found


def ragged(h, seed):
    """A random small hierarchy, several roots."""
    rng = np.random.default_rng(seed)
    parents, width = {}, int(rng.integers(1, 3))
    roots = width
    for _ in h.order[1:]:
        fan = rng.integers(1, 4, size=width)
        parents[h.order[len(parents) + 1]] = np.repeat(np.arange(width), fan).tolist()
        width = int(fan.sum())
    return World(h.order, parents, {}, settings_of(h, {}), roots)


def levels(n, xs, advantages=None):
    """What every level gives, as it is added up: per stratum, the plus channel less the minus channel."""
    outputs = n.run("levels", xs, advantages)
    found = {}
    for s in n.world.chain:
        if n.h.decomposition.channels == ("",):
            found[s] = outputs[f"gated_{s}"]
        else:
            found[s] = outputs[f"gated_{s}_plus"] - outputs[f"gated_{s}_minus"]
    return found


def climb(goal, size, seed, rounds=250, scale=1.0):
    """A large value of `goal(xs)`, by random changes of single values and of whole stretches."""
    rng = np.random.default_rng(seed)
    best = rng.normal(size=size) * scale
    value = goal(best)
    for _ in range(rounds):
        trial = best.copy()
        where_ = rng.random(size) < rng.choice([1 / size, 0.3, 1.0])
        trial[where_] = (trial + rng.normal(size=size) * scale * rng.choice([1, 0.1, 0.01]))[where_] * rng.choice(
            [1, 1, -1, 3]
        )
        if (new := goal(trial)) >= value:
            best, value = trial, new
    return best, value


# ---------------------------------------------------------------- bounds

BOUNDED = {
    "fiberpo": (load("fiberpo"), (6,)),
    "fiberpo_domain": (load("fiberpo_domain"), (2, 2, 4)),
    "gspo": (load("gspo"), (5,)),
    "asymmetrical clips": (two(outer=Gate(clip(residual, -budget / 2, budget)), split=log_ratio(scale=1 / T)), (5,)),
    "clip on a root of signed channels": (one(clip_gate(epsilon), signed_log_ratio()), ()),
    "asymmetrical clip on signed channels": (one(clip(residual, -budget, epsilon), signed_log_ratio()), ()),
    "three clipped levels": (
        chain(uniform(), proportional(count(token)), gates={s: clip_gate(budget).per(count(token)) for s in (trajectory, prompt_group)} | {token: clip_gate(epsilon)}),
        (2, 3),
    ),
    "softsign": (RIGHT["softsign"], ()),
    "bell": (RIGHT["bell"], ()),
    "cubic": (RIGHT["cubic"], ()),
    "either bound": (RIGHT["either bound"], ()),
    "centred sigmoid": (RIGHT["centred sigmoid"], ()),
    "exponential less one": (RIGHT["exponential less one"], ()),
    "in bits": (RIGHT["in bits"], ()),
    "doubled": (RIGHT["doubled"], ()),
    "two halves": (RIGHT["two halves"], (4,)),
    "signed minus channel": (RIGHT["signed minus channel"], (4,)),
    "unscaled over three levels": (RIGHT["unscaled over three levels"], (2, 2)),
    "unscaled clips over three levels": (
        chain(uniform(), uniform(), gates=dict.fromkeys((token, trajectory, prompt_group), clip_gate(budget)), split=signed_log_ratio()),
        (2, 2),
    ),
    "scale against the kernels": (
        chain(uniform(), proportional(count(token)), gates=dict.fromkeys((trajectory, prompt_group), clip_gate(budget)), split=log_ratio(scale=1 / T)),
        (2, 2),
    ),
    "budget that widens": (RIGHT["budget that widens with the trajectory's drift"], (4,)),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_are_never_exceeded(name):
    """Neither the total nor what a level adds, on random batches and on batches that climb towards the bound."""
    h, fans = BOUNDED[name]
    certified = facts(h, "bounds")
    values = parameter_values(h)
    if not certified:
        return
    assert set(certified) == {"log 𝒢", *(f"{s} level" for s in h.order)}
    for seed, world in enumerate([forest(h, fans), ragged(h, 0)]):
        n = Numeric(h, world)
        counts = {}
        for s, over in itertools.product(h.strata, h.strata):
            if h.order.index(s) >= h.order.index(over):
                counts[f"count({s}, over={over})"] = len(world.over(s, over, 0))
        if any("count" in v for v in certified.values()) and seed:
            continue  # as many elements over each, so that the text has one value
        limits = {k: interval(v, values, counts) for k, v in certified.items()}
        size = world.size(token)

        def totals(xs, n=n):
            return np.log(n.ratio(xs))

        low, high = limits["log 𝒢"]
        for sign, bound in ((1, high), (-1, low)):
            if abs(bound) < math.inf:
                for scale in (0.1, 1.0, 5.0):
                    _, reached = climb(lambda xs, s=sign: float((s * totals(xs)).max()), size, seed, 60, scale)
                    assert reached <= sign * bound + 1e-9, f"log 𝒢 reaches {sign * reached}, beyond {bound}"
            for stratum in h.order:
                near = limits[f"{stratum} level"][0 if sign < 0 else 1]
                if abs(near) < math.inf:
                    _, reached = climb(
                        lambda xs, s=sign, k=stratum, n=n: float((s * levels(n, xs)[k]).max()), size, seed, 60, 1.0
                    )
                    assert reached <= sign * near + 1e-9, f"{stratum} adds {sign * reached}, beyond {near}"


@pytest.mark.parametrize(("plus", "minus", "eps"), [(0.2, 0.1, 0.05), (0.05, 0.3, 0.02), (0.7, 0.2, 0.3)])
def test_fiberpo_bounds_are_those_of_the_paper(plus, minus, eps):
    h = load("fiberpo")
    values = {"C_trajectory[+]": plus, "C_trajectory[-]": minus, "epsilon": eps}
    certified = {k: interval(v, values) for k, v in facts(h, "bounds").items()}
    assert certified["log 𝒢"] == pytest.approx((-minus - 2 * eps, plus + 2 * eps))
    assert certified["trajectory level"] == pytest.approx((-minus, plus))
    assert certified["token level"] == pytest.approx((-2 * eps, 2 * eps))
    assert number(facts(h, "radius")["hierarchy"], values) == min(plus, minus, eps)


@pytest.mark.parametrize("sign", [1, -1])
def test_fiberpo_bounds_are_approached(sign):
    """One channel at its budget, the other so far out that it is zeroed, and one token that stands out."""
    h = load("fiberpo")
    values = parameter_values(h)
    low, high = interval(facts(h, "bounds")["log 𝒢"], values)
    size = 40
    n = Numeric(h, forest(h, (size,)))
    own, other = ("+", "-") if sign > 0 else ("-", "+")
    xs = np.full(size, -sign * (1.2 * values[f"C_trajectory[{other}]"] + values["epsilon"]) * size / (size - 1))
    xs[0] = sign * values[f"C_trajectory[{own}]"] * size * (1 - 1e-9)
    reached = float(np.log(n.ratio(xs))[0])
    assert reached == pytest.approx(high if sign > 0 else low, rel=0.01)


@pytest.mark.parametrize("sign", [1, -1])
def test_fiberpo_domain_bounds_are_approached(sign):
    """Every level at the end of its budget at once: the bound is the sum of what the levels add at most."""
    h = load("fiberpo_domain")
    values = parameter_values(h)
    low, high = interval(facts(h, "bounds")["log 𝒢"], values)
    own, other = ("+", "-") if sign > 0 else ("-", "+")
    budget_of = {c: [values[f"C_{s}[{c}]"] * (1 - 1e-9) for s in (domain, prompt_group, trajectory)] for c in "+-"}
    fan, tokens = 3, 400
    d, g, t = budget_of[own]
    goal = _trajectory_means(d, g, t, fan)
    d2, g2, t2 = budget_of[other]
    away = _trajectory_means(1.05 * d2 + g2 + t2 + values["epsilon"], -g2, -t2, fan)
    n = Numeric(h, forest(h, (fan, fan, tokens)))
    xs = []
    for up, down in zip(goal, away, strict=True):
        xs += [sign * up * tokens, *[-sign * down * tokens / (tokens - 1)] * (tokens - 1)]
    added = levels(n, np.array(xs))
    for stratum, bound in facts(h, "bounds").items():
        if stratum != "log 𝒢":
            limits = interval(bound, values)
            level = added[next(s for s in h.order if stratum == f"{s} level")]
            assert sign * float(level[0]) == pytest.approx(max(sign * v for v in limits), rel=0.01)
    reached = float(np.log(n.ratio(np.array(xs)))[0])
    assert reached == pytest.approx(high if sign > 0 else low, rel=0.01)


def _trajectory_means(base, group, own, fan):
    """Means of trajectories, so that the first deviates by `own` from its group, and that by `group` from `base`."""
    groups = [base + group, *[base - group / (fan - 1)] * (fan - 1)]
    first = [groups[0] + own, *[groups[0] - own / (fan - 1)] * (fan - 1)]
    return [*first, *(m for m in groups[1:] for _ in range(fan))]


@pytest.mark.parametrize("name", ["ppo", "grpo", "dapo", "dr_grpo"])
def test_bounds_of_clipped_ratios(name):
    """In deviation coordinates the bound is of the ratio itself, and reached."""
    h = load(name)
    low, high = interval(facts(h, "bounds")["𝒢"], parameter_values(h))
    n = Numeric(h, forest(h, ()))
    found = [
        float(n.ratio([v], [a])[0])
        for v in np.concatenate([np.linspace(-12, 12, 401), [30.0, -30.0]])
        for a in (1.0, -1.0, 0.0)
    ]
    assert low <= min(found) <= low + 1e-4
    if high < math.inf:
        assert high * 0.9999 <= max(found) <= high + 1e-12
    else:
        assert max(found) > 1e12


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (clip_gate(epsilon), (0.9, 1.1)),
        (Gate(where(residual < -0.5, (residual - 0.5) / 2, residual)), (0.25, math.inf)),
        (pessimistic_clip_gate(epsilon, budget), (0, math.inf)),
        (clip_gate(Parameter("wide", default=2.0)), (None, 3.0)),
    ],
)
def test_bounds_of_ratios_are_tight(gate, expected):
    h = one(gate)
    low, high = interval(facts(h, "bounds")["𝒢"], parameter_values(h))
    assert high == pytest.approx(expected[1])
    if expected[0] is not None:
        assert low == pytest.approx(expected[0])
    n = Numeric(h, forest(h, ()))
    found = [float(n.ratio([v], [a])[0]) for v in np.linspace(-20, 20, 201) for a in (1.0, -1.0)]
    assert low - 1e-12 <= min(found)
    assert max(found) <= high + 1e-12


# ---------------------------------------------------------------- pass-through radius

RADIUS = {
    **{name: load(name) for name in SHIPPED},
    "signed clip": two(outer=clip_gate(budget)),
    "one channel": two(outer=clip_gate(budget), inner=clip_gate(epsilon).per(1 / T), split=log_ratio(scale=1 / T)),
    "one channel, asymmetrical": two(
        outer=Gate(clip(residual, -budget / 8, budget)), inner=Gate(clip(residual, -1, 0.3)).per(1 / T), split=log_ratio(scale=1 / T)
    ),
    "lower end on signed channels": two(outer=Gate(clip(residual, -budget / 8, budget)), inner=identity_gate()),
    "asymmetrical tokens": two(outer=identity_gate(), inner=Gate(clip(residual, -epsilon / 3, epsilon)).per(1 / T)),
    "tokens in their own units": two(outer=identity_gate(), inner=clip_gate(epsilon)),
    "three levels": chain(uniform(), proportional(count(token)), gates={trajectory: clip_gate(epsilon).per(count(token))}),
    "unscaled, three levels": chain(uniform(), uniform(), gates={prompt_group: clip_gate(budget)}, split=signed_log_ratio()),
    "deviations": one(clip_gate(epsilon)),
    "deviations over two levels": two(
        outer=identity_gate(), inner=clip_gate(epsilon).per(1 / T), split=ratio_deviation(scale=1 / T)
    ),
    "deviations over two levels, outer": two(
        outer=clip_gate(epsilon), inner=identity_gate(), split=ratio_deviation(scale=1 / T)
    ),
    "wide clip of deviations": one(clip_gate(Parameter("wide", default=2.0))),
    "doubled": one(clip_gate(epsilon), Decomposition({"": 2 * x}, exp(gated("") / 2))),
    "doubled deviation": one(clip_gate(epsilon), Decomposition({"": 2 * expm1(x)}, 1 + gated("") / 2)),
    "scaled by an attribute": one(clip_gate(epsilon), ratio_deviation(scale=zoo.weight)),
    "two halves": RIGHT["two halves"],
    "identity": two(outer=identity_gate(), inner=identity_gate()),
    "identity of deviations": two(outer=identity_gate(), inner=identity_gate(), split=ratio_deviation(scale=1 / T)),
    "tanh": RIGHT["tanh"],
    "cubic": RIGHT["cubic"],
    "shrinking": RIGHT["budget that shrinks with the trajectory's drift"],
    "above 1 for long": two(outer=clip_gate(1 / T)),
}  # fmt: skip


def regular(h, size):
    depth = len(h.order) - 1
    return (2,) * (depth - 1) + (size,) if depth else ()


def wide(h, size):
    """Many elements over each at one level, one at the others, level by level; and two everywhere but at the leaf."""
    depth = len(h.order) - 1
    return {regular(h, size), *((1,) * k + (size,) + (1,) * (depth - k - 1) for k in range(depth))} if depth else {()}


def corners(h, world, seed=0):
    """Log ratios in units of the radius: constant, opposite ends, one against the rest, random."""
    n = world.size(token)
    rng = np.random.default_rng(seed)
    yield from (np.ones(n), -np.ones(n))
    for k in range(3):
        flipped = np.ones(n)
        flipped[: max(1, n // 2**k)] = -1
        yield from (flipped, -flipped)
    single = -np.ones(n)
    single[0] = 1
    yield from (single, -single)
    half = np.ones(n)
    half[: n // 2] = 0
    yield from (half, -half)
    alone = np.zeros(n)
    alone[0] = 1
    yield from (alone, -alone)
    for _ in range(6):
        yield rng.choice([-1, 0, 1], size=n).astype(float)
        yield rng.uniform(-1, 1, size=n)


@pytest.mark.parametrize("name", RADIUS)
def test_radius(name):
    """Inside it every ratio passes to rounding; 1% outside, on some batch, one does not."""
    h = RADIUS[name]
    if h.attributes or "radius" not in {f.name for f in report(h).facts}:
        assert name in NOT_CERTIFIED
        return
    text = facts(h, "radius")["hierarchy"]
    found = []
    for fans in sorted({f for size in (1, 2, 7, 300) for f in wide(h, size)}):
        world = forest(h, fans)
        counts = {f"count({token}, over={s})": len(world.over(token, s, 0)) for s in h.order}
        found.append((world, number(text, parameter_values(h), counts)))
    for world, radius in found:
        n = Numeric(h, world)
        for corner in corners(h, world):
            for a in (1.0, -1.0):
                xs = corner * min(radius, 5.0) * (1 - 1e-9)
                passed = n.ratio(xs, np.full(len(xs), a))
                assert passed == pytest.approx(np.exp(xs), rel=1e-12), f"changed inside {radius}"
    if min(r for _, r in found) < math.inf and name not in {"tanh", "cubic", "gspo"}:
        changed = 0.0
        for world, radius in found:
            n = Numeric(h, world)
            for corner in corners(h, world):
                for a in (1.0, -1.0):
                    xs = corner * radius * 1.01
                    gap = np.abs(n.ratio(xs, np.full(len(xs), a)) - np.exp(xs))
                    changed = max(changed, float(gap.max()))
        assert changed > 1e-6, f"nothing changes 1% outside {text}"


# Facts that this version does not give: the coordinates are not the normal ones, or an interval depends on a density.
NOT_CERTIFIED = {
    "doubled", "doubled deviation", "scaled by an attribute", "unscaled, three levels", "two halves", "wide clip of deviations", "shrinking",
}  # fmt: skip


def test_radius_of_smooth_gates_is_0():
    for gate in (Gate(tanh(residual)), Gate(residual / (1 + abs(residual))), zero_gate()):
        h = one(gate, log_ratio(), **({"gives_up": {"first_order": "dropped"}} if gate == zero_gate() else {}))
        assert facts(h, "radius") == {"hierarchy": "0"}


# ---------------------------------------------------------------- continuity and falling slopes

SHAPES = {
    "fiberpo": load("fiberpo"),
    "fiberpo_domain": load("fiberpo_domain"),
    "dual clip": load("ppo"),
    "jump to zero": RIGHT["either bound"],
    "jump at a bound": one(where(residual > epsilon, 2 * epsilon, residual), log_ratio()),
    "jump for one sign of the advantage": one(
        where(zoo.advantage > 0, where(residual > epsilon, 2 * epsilon, residual), residual), log_ratio()
    ),
    "jump at one point": one(where((residual >= 1) & (residual <= 1), 0, residual), log_ratio()),
    "jump below": one(where(residual < -1, -2, residual), log_ratio()),
    "kink": one(where(residual > 1, 2 * residual - 1, residual), log_ratio()),
    "rollback": one(where(residual > epsilon, epsilon - 0.3 * (residual - epsilon), residual), log_ratio()),
    "rollback below only": one(where(residual < -budget, -budget - 2 * (residual + budget), residual), log_ratio()),
    "cubic": RIGHT["cubic"],
    "softsign": RIGHT["softsign"],
}  # fmt: skip


def sampled(h, stratum, channel, advantage_value):
    """A gate in intensive units, as a function of a float."""
    world = forest(h, tuple(2 for _ in h.order[1:]))
    gate = in_channel(h.gate(stratum), channel)
    leaf = h.order[-1]
    mass = sum((world.value(h.decomposition.scale, leaf, i) for i in world.over(leaf, stratum, 0)), Fraction(0))

    def g(rho):
        bound = {residual: mass * Fraction(rho), zoo.advantage: Fraction(advantage_value)}
        return float(evaluate(gate, lambda a: bound[a] if a in bound else world.atom(a, stratum, 0)) / mass)

    return g


def jumps(g, points):
    """Pairs of neighbours whose values stay apart however close they come."""
    for low, high in itertools.pairwise(points):
        for _ in range(60):
            middle = (low + high) / 2
            if abs(g(low) - g(high)) < 1e-6:
                break
            left, right = abs(g(low) - g(middle)), abs(g(middle) - g(high))
            low, high = (low, middle) if left >= right else (middle, high)
        if abs(g(low) - g(high)) > 1e-6:
            yield low


GRID = sorted({*np.linspace(-2, 2, 81).tolist(), 0.0, 1.0, -1.0})


@pytest.mark.parametrize("name", SHAPES)
def test_continuity(name):
    h = SHAPES[name]
    certified = facts(h, "continuity")
    for stratum in h.order:
        said = certified[f"gate on {stratum}"]
        curves = [sampled(h, stratum, c, a) for c in h.decomposition.channels for a in (1, -1, 0)]
        found = any(next(jumps(g, GRID), None) is not None for g in curves)
        found |= any(abs(g(1.0) - g(1.0 + 1e-9)) > 1e-6 or abs(g(1.0) - g(1.0 - 1e-9)) > 1e-6 for g in curves)
        assert said == ("has a jump" if found else "continuous")


@pytest.mark.parametrize("name", SHAPES)
def test_restorative_regions(name):
    """Where the report says that a gate falls it does, with that slope; elsewhere it does not fall."""
    h = SHAPES[name]
    certified = facts(h, "restorative")
    world = forest(h, tuple(2 for _ in h.order[1:]))
    for stratum in h.order:
        for channel in h.decomposition.channels:
            values = parameter_values(h)
            values |= {k.removesuffix(f"[{channel}]"): v for k, v in values.items() if k.endswith(f"[{channel}]")}
            counts = {
                f"count({s}, over={o})": len(world.over(s, o, 0))
                for s in h.order
                for o in h.order
                if h.order.index(s) >= h.order.index(o)
            }
            regions = []
            for part in filter(None, certified.get(f"gate on {stratum}", "").split("; ")):
                said = r"(.*) < (\|ρ\||ρ) < (.*) with slope (.*?)(?: where the advantage is .*)?"
                low, variable, high, slope = re.fullmatch(said, part).groups()
                ends = number(low, values, counts), number(high, values, counts)
                fall = _slope(slope, values, counts)
                regions.append((*ends, fall))
                if variable == "|ρ|":
                    regions.append((-ends[1], -ends[0], lambda v, f=fall: f(-v)))
            curves = [sampled(h, stratum, channel, a) for a in (1, -1)]
            for rho in np.linspace(-1.9, 1.9, 381) + 1e-4:
                steps = [(g(rho + 1e-7) - g(rho - 1e-7)) / 2e-7 for g in curves]
                inside = [f(rho) for low, high, f in regions if low + 1e-6 < rho < high - 1e-6]
                edge = any(abs(rho - e) < 1e-5 for low, high, _ in regions for e in (low, high))
                smooth = all(abs(g(rho + 1e-7) - g(rho - 1e-7)) < 1e-5 for g in curves)
                if edge or not smooth:
                    continue
                if inside:
                    assert any(s == pytest.approx(inside[0], abs=1e-4) for s in steps), f"{rho}: {steps}, not {inside}"
                elif name not in {"cubic"}:
                    assert min(steps) > -1e-6, f"falls at {rho}"


def test_where_a_gate_falls_is_said_for_each_sign_of_the_advantage():
    assert facts(load("truly_ppo"), "restorative")["gate on token"] == (
        "epsilon < ρ < inf with slope -alpha where the advantage is at least 0; "
        "-1 < ρ < -epsilon with slope -alpha where the advantage is below 0"
    )


def test_a_ratio_is_not_bounded_by_less_than_0():
    """A bound of more than 1 on deviations below 0 bounds nothing."""
    assert facts(load("cispo"), "bounds")["𝒢"] == "[maximum(0, 1 - epsilon_low), 1 + epsilon_high]"
    small = Parameter("small", default=0.2, upper=1)
    assert facts(one(clip_gate(small)), "bounds")["𝒢"] == "[1 - small, 1 + small]"
    assert facts(one(Gate(clip(residual, -2, 2))), "bounds")["𝒢"] == "(0, 3]"


def _slope(text, values, counts):
    return lambda rho: number(text, {**values, "residual": rho}, counts)


def test_a_smooth_fall_is_not_certified_where_its_sign_changes():
    """`ρ - ρ³` rises and falls inside one piece; only pieces that fall everywhere are named."""
    assert facts(RIGHT["bell"], "restorative") == {}
    assert facts(SHAPES["rollback"], "restorative") != {}


# ---------------------------------------------------------------- blocks of the Jacobian

drift = density(prompt_group)
BLOCKS = {
    "fiberpo": load("fiberpo"),
    "fiberpo_domain": load("fiberpo_domain"),
    "gspo": load("gspo"),
    "ppo": load("ppo"),
    "identity": chain(uniform(), uniform()),
    "token gate alone": chain(uniform(), uniform(), gates={token: Gate(residual / (1 + residual**2))}),
    "trajectory gate alone": chain(uniform(), uniform(), gates={trajectory: Gate(tanh(residual))}),
    "root gate alone": chain(uniform(), uniform(), gates={prompt_group: Gate(tanh(residual))}),
    "token gate reads the root": chain(uniform(), uniform(), gates={token: Gate(residual / (1 + drift**2))}),
    "token gate reads the trajectory": chain(
        uniform(), uniform(), gates={token: Gate(residual / (1 + density(trajectory) ** 2))}
    ),
    "four levels, token gate alone": chain(uniform(), uniform(), uniform(), gates={token: Gate(tanh(residual))}),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name):
    """Entries across the certified blocks are exactly 0; within some block, and not only on the diagonal, one is not."""
    h = BLOCKS[name]
    stratum = next(s for s in h.order if facts(h, "blocks")["Jacobian of 𝒢"] == f"block-diagonal over {s}")
    world = forest(h, tuple(2 for _ in h.order[1:]), roots=2)
    n, size = Numeric(h, world), world.size(token)
    block = np.array([world.below(token, i, stratum) for i in range(size)])
    inside = np.zeros((size, size), bool)
    for seed in range(6):
        xs = np.random.default_rng(seed).normal(size=size) * (0.02 if seed < 3 else 0.15)
        advantages = np.repeat(np.random.default_rng(seed).choice([-1.0, 1.0], size=size), 1)
        if name == "gspo":
            advantages = advantages[
                [world.over(token, trajectory, world.below(token, i, trajectory))[0] for i in range(size)]
            ]
        jacobian = n.jacobian(xs, advantages)
        across = block[:, None] != block[None, :]
        assert (jacobian[across] == 0).all()
        inside |= (jacobian != 0) & ~across
    assert inside.diagonal().any()
    if stratum != token:
        finer = np.array([world.below(token, i, h.order[h.order.index(stratum) + 1]) for i in range(size)])
        assert inside[finer[:, None] != finer[None, :]].any(), "the blocks are finer than certified"


# ---------------------------------------------------------------- what is not certified


def test_no_radius_and_no_bounds_where_a_law_of_the_levels_fails():
    for h in (two(1 / (T + 1)), two(2 / T), two(split=Decomposition({"": x}, exp(gated("") * 2)))):
        names = {f.name for f in report(h).facts}
        assert not names & {"radius", "bounds"}


def test_facts_of_hierarchies_that_give_up_a_law():
    for h, _ in SUBSPACES.values():
        found = report(h)
        assert {f.name for f in found.facts} >= {"continuity", "blocks"}
        for f in found.facts:
            assert f.value
            assert f.to_dict()["name"] == f.name


def test_aggregate_gate_continuity_at_every_rollback():
    """Rollback ends at 0 where the zeroed region begins, whatever its slope."""
    for rollback in (1, 3, count(token), Parameter("k", default=2.0)):
        h = two(outer=aggregate_gate(budget, rollback=rollback))
        assert facts(h, "continuity")["gate on trajectory"] == "continuous"
        assert "slope -" in facts(h, "restorative")["gate on trajectory"]


def test_the_dense_operator_and_the_interpreter_agree():
    """The two oracles of these tests, on the shipped specs with branches."""
    for name in ("fiberpo", "fiberpo_domain"):
        h = load(name)
        world = forest(h, regular(h, 2))
        xs = [Fraction(k, 16) for k in (3, -2, 0, 5, -7, 1, 4, -1)][: world.size(token)]
        dense = brute.ratios(h, world, xs)
        assert [float(v) for v in dense] == pytest.approx(list(Numeric(h, world).ratio(xs)), rel=1e-12)


# ---------------------------------------------------------------- effects


def test_what_a_program_fits_is_an_effect_to_the_facts():
    """Shortcuts into both branches, below them a crossing: `turn` and `page` are fitted though nothing lies over both."""
    page, over = Stratum("page"), quivers.n(quivers.text) + quivers.n(quivers.image)

    def branch(leaf, between):
        return (
            (leaf, between, 1 / count(leaf, over=between)),
            (between, trajectory, count(leaf, over=between) / over),
            (leaf, trajectory, 1 / over),
        )

    h = quivers.make(
        *branch(quivers.text, quivers.turn),
        *branch(quivers.image, page),
        *quivers.CROSS[1:],
        orthogonalise="projection",
    )
    fitted = {node.into for node in lower(h).nodes() if isinstance(node, Mix)}
    assert fitted == {"turn", "page", "domain", "modality"}
    assert fitted <= {s.name for s in h.order if is_effect(h, s)}
