"""Certified bounds against numbers: no batch exceeds them, and some come near."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hierarchies.builders import T, budget, chain, domain, epsilon, one, prompt_group, token, trajectory, two, x
from hierarchies.first_order_specs import DROPPED, SHAPED, deep_tree, group
from hierarchies.quivers import text, turn
from hierarchies.right import RIGHT
from oracles.certified_facts import climb, facts, fixed, forest, levels, ragged, report, signs
from oracles.definition import batches
from oracles.fact_text import interval, number, parameter_values
from oracles.interpreter import Interpreter
from thorough import ALL, some

from fibration import (
    Decomposition,
    Gate,
    Parameter,
    clip,
    clip_gate,
    count,
    exp,
    gated,
    load,
    log1p,
    log_ratio,
    pessimistic_clip_gate,
    proportional,
    residual,
    signed_log_ratio,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import mass

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


@pytest.mark.sampled
@pytest.mark.parametrize("name", BOUNDED)
def test_no_batch_exceeds_the_certified_bounds(name):
    """This holds for the total and for each level, on random batches and on batches that climb to the bound."""
    h, fans = BOUNDED[name]
    certified = facts(h, "bounds")
    values = parameter_values(h)
    if not certified:
        return
    assert set(certified) == {"log 𝒢", *(f"{s} level" for s in h.order)}
    for seed, world in enumerate([forest(h, fans), ragged(h, 0)]):
        n = Interpreter(world)
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
def test_fiberpo_bounds_equal_those_of_the_paper(plus, minus, eps):
    h = load("fiberpo")
    values = {"C_trajectory[+]": plus, "C_trajectory[-]": minus, "epsilon": eps}
    certified = {k: interval(v, values) for k, v in facts(h, "bounds").items()}
    assert certified["log 𝒢"] == pytest.approx((-minus - 2 * eps, plus + 2 * eps))
    assert certified["trajectory level"] == pytest.approx((-minus, plus))
    assert certified["token level"] == pytest.approx((-2 * eps, 2 * eps))
    assert number(facts(h, "radius")["hierarchy"], values) == min(plus, minus, eps)


@pytest.mark.parametrize("sign", [1, -1])
def test_fiberpo_bounds_are_approached(sign):
    """One channel is at its budget, the other is zeroed, and one token stands out."""
    h = load("fiberpo")
    values = parameter_values(h)
    low, high = interval(facts(h, "bounds")["log 𝒢"], values)
    size = 40
    n = Interpreter(forest(h, (size,)))
    own, other = ("+", "-") if sign > 0 else ("-", "+")
    xs = np.full(size, -sign * (1.2 * values[f"C_trajectory[{other}]"] + values["epsilon"]) * size / (size - 1))
    xs[0] = sign * values[f"C_trajectory[{own}]"] * size * (1 - 1e-9)
    reached = float(np.log(n.ratio(xs))[0])
    assert reached == pytest.approx(high if sign > 0 else low, rel=0.01)


@pytest.mark.parametrize("sign", [1, -1])
def test_fiberpo_domain_bounds_are_approached(sign):
    """Every level is at the end of its budget. The bound is the sum over levels."""
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
    n = Interpreter(forest(h, (fan, fan, tokens)))
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


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["ppo", "grpo", "dapo", "dr_grpo"])
def test_bounds_of_clipped_ratios_are_reached(name):
    """With deviations the bound is that of the ratio itself."""
    h = load(name)
    low, high = interval(facts(h, "bounds")["𝒢"], parameter_values(h))
    n = Interpreter(forest(h, ()))
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
def test_bounds_of_ratios_equal_the_expected_interval(gate, expected):
    h = one(gate)
    low, high = interval(facts(h, "bounds")["𝒢"], parameter_values(h))
    assert high == pytest.approx(expected[1])
    if expected[0] is not None:
        assert low == pytest.approx(expected[0])
    n = Interpreter(forest(h, ()))
    found = [float(n.ratio([v], [a])[0]) for v in np.linspace(-20, 20, 201) for a in (1.0, -1.0)]
    assert low - 1e-12 <= min(found)
    assert max(found) <= high + 1e-12


def test_a_ratio_is_not_bounded_by_less_than_0():
    """A bound of more than 1 on deviations below 0 bounds nothing."""
    assert facts(load("cispo"), "bounds")["𝒢"] == "[maximum(0, 1 - epsilon_low), 1 + epsilon_high]"
    small = Parameter("small", default=0.2, upper=1)
    assert facts(one(clip_gate(small)), "bounds")["𝒢"] == "[1 - small, 1 + small]"
    assert facts(one(Gate(clip(residual, -2, 2))), "bounds")["𝒢"] == "(0, 3]"


def test_a_gate_with_a_pole_at_the_end_of_its_range_has_no_bound():
    """`log(1 + ρ)` tends to -∞ as the ratio tends to 0."""
    names = {f.name for f in report(one(log1p(residual))).facts}
    assert names >= {"radius", "amplification", "continuity", "blocks", "normaliser", "weight", "coupling"}
    assert "bounds" not in names


def test_there_is_no_radius_and_no_bound_if_a_law_of_levels_fails():
    for h in (two(1 / (T + 1)), two(2 / T), two(split=Decomposition({"": x}, exp(gated("") * 2)))):
        names = {f.name for f in report(h).facts}
        assert not names & {"radius", "bounds"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(SHAPED, 2))
def test_on_trees_and_quivers_no_batch_exceeds_the_certified_bounds(name):
    h, rng = SHAPED[name], random.Random(name)
    certified = {k: interval(v, parameter_values(h)) for k, v in facts(h, "bounds").items()}
    totals = {k: v for k, v in certified.items() if k.startswith("log 𝒢")}
    if "deviations" in name:
        assert not certified
        return
    assert len(totals) == len(h.leaves)
    assert set(certified) - set(totals) == {f"{s} level" for s in h.strata}
    for plain in batches(h, seed=6, count=10 if ALL else 4):
        plain = fixed(h, plain)
        for corner in signs(len(plain.tokens), rng):
            xs = [Fraction(c) * rng.choice([Fraction(1, 10), 1, 9]) for c in corner]
            for (leaf, _), g in zip(plain.tokens, plain.ratios(xs), strict=True):
                least, most = totals["log 𝒢" if len(totals) == 1 else f"log 𝒢 on {leaf}"]
                assert least - 1e-9 <= math.log(g) <= most + 1e-9


def test_each_leaf_of_a_tree_has_its_own_bounds():
    found = facts(
        deep_tree(
            {turn: clip_gate(budget).per(mass), text: zero_gate(), group: zero_gate(), trajectory: zero_gate()},
            gives_up=DROPPED,
        ),
        "bounds",
    )
    assert found["log 𝒢 on text_token"] == "[-C, C]"
    assert found["log 𝒢 on image_token"] == "(-inf, inf)"
