"""The radius inside which gates change nothing, and bounds of ratios and levels, against numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hierarchies import builders
from hierarchies.builders import T, budget, chain, epsilon, one, prompt_group, trajectory, two, x
from hierarchies.edges import N, crossed, index
from hierarchies.first_order_specs import (
    DROPPED,
    EVERYWHERE,
    SIGNED,
    SPECS,
    VALUE,
    alone,
    deep_tree,
    group,
    high,
    low,
    quiver,
)
from hierarchies.quivers import text, turn
from oracles.certified_facts import facts, facts_of, forest, judged, report
from oracles.fact_text import interval, number, parameter_values
from oracles.interpreter import Interpreter
from support import operator
from thorough import some

from fibration import (
    Decomposition,
    Gate,
    Hierarchy,
    Parameter,
    Penalty,
    clip,
    clip_gate,
    count,
    exp,
    expm1,
    gated,
    identity_gate,
    load,
    log1p,
    log_prob,
    log_ratio,
    maximum,
    minimum,
    pessimistic_clip_gate,
    policies,
    proportional,
    ratio_deviation,
    residual,
    signed_log_ratio,
    stop,
    strata,
    tanh,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.language.atoms import mass

(token,) = strata("token")
CHAINS = {
    "asymmetrical clips": two(outer=Gate(clip(residual, -budget / 2, budget)), split=log_ratio(scale=1 / T)),
    "clip on a root of signed channels": one(clip_gate(epsilon), signed_log_ratio()),
    "asymmetrical clip on signed channels": one(clip(residual, -budget, epsilon), signed_log_ratio()),
    "three clipped levels": chain(
        uniform(), proportional(count(token)), gates={s: clip_gate(budget).per(count(token)) for s in (trajectory, prompt_group)} | {token: clip_gate(epsilon)}
    ),
    "unscaled clips over three levels": chain(
        uniform(), uniform(), gates=dict.fromkeys((token, trajectory, prompt_group), clip_gate(budget)), split=signed_log_ratio()
    ),
    "scale against the kernels": chain(
        uniform(), proportional(count(token)), gates=dict.fromkeys((trajectory, prompt_group), clip_gate(budget)), split=log_ratio(scale=1 / T)
    ),
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
    "scaled by an attribute": one(clip_gate(epsilon), ratio_deviation(scale=builders.weight)),
    "identity": two(outer=identity_gate(), inner=identity_gate()),
    "identity of deviations": two(outer=identity_gate(), inner=identity_gate(), split=ratio_deviation(scale=1 / T)),
    "above 1 for long": two(outer=clip_gate(1 / T)),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(CHAINS, 2))
def test_no_batch_contradicts_the_facts_of_a_chain(name):
    """The judge reads `radius` and `bounds` on random batches, as on every other hierarchy of the tests."""
    judged(CHAINS[name])


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
        assert not facts_of(h, "radius") and not facts_of(h, "bounds")


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


# ---------------------------------------------------------------- the radius


def test_the_radius_ends_where_slopes_change():
    turned = one(where(abs(residual) <= epsilon, residual, 2 * stop(residual) - residual), log_ratio())
    assert facts(turned, "radius")["hierarchy"] == "epsilon"


def test_the_radius_of_smooth_gates_is_0():
    for gate in (Gate(tanh(residual)), Gate(residual / (1 + abs(residual))), zero_gate()):
        h = one(gate, log_ratio(), **({"gives_up": {"first_order": "dropped"}} if gate == zero_gate() else {}))
        assert facts(h, "radius") == {"hierarchy": "0"}


@pytest.mark.thorough
def test_the_radius_of_a_crossing_with_sign_channels_is_half_the_smaller_bound():
    """Means of `max(±x, 0)` lie in `[0, R]`: two of them count for the residual, and two against it."""
    for gate in (clip(residual, -budget / 4, budget), clip(residual, -budget, budget / 4)):
        assert facts(quiver({trajectory: Gate(gate).per(mass)}, SIGNED), "radius") == {"hierarchy": "C/8"}


lower, upper = Parameter("lower", default=0.02), Parameter("wide", default=0.6)
BY_SIZES = {  # of the gate on the one level, and its radius
    "the larger": (maximum(epsilon - 1 / T, 1e-6), lambda e, n: max(e - 1 / n, 1e-6)),
    "the smaller": (minimum(epsilon, 1 / T), lambda e, n: min(e, 1 / n)),
    "a distance": (abs(epsilon - 1 / T) + 0.01, lambda e, n: abs(e - 1 / n) + 0.01),
    "a choice": (where(T > 3, epsilon, epsilon / 2), lambda e, n: e if n > 3 else e / 2),
    "at one size": (where(T > 2, where(T > 3, 2, 1 / T), 3), lambda e, n: 3 if n < 3 else 1 / n if n == 3 else 2),
    "nested": (maximum(minimum(epsilon, 1 / T), lower), lambda e, n: max(min(e, 1 / n), 0.02)),
    "nested the other way": (minimum(maximum(epsilon, 1 / T), upper), lambda e, n: min(max(e, 1 / n), 0.6)),
    "a distance of a larger one": (abs(maximum(epsilon - 1 / T, lower)), lambda e, n: max(e - 1 / n, 0.02)),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_SIZES)
@pytest.mark.parametrize("split", [log_ratio, signed_log_ratio])
def test_a_bound_that_chooses_by_size_has_a_radius_and_a_range_that_choose(name, split):
    """The smallest of all its branches would be negative for short rows."""
    bound, expected = BY_SIZES[name]
    h = two(outer=clip_gate(bound), inner=identity_gate(), split=split(scale=1 / T))
    said, ends = facts(h, "radius")["hierarchy"], facts(h, "bounds")["trajectory level"]
    for n in (1, 2, 3, 4, 5, 20, 300):
        for e in (0.01, 0.2, 0.9):
            values, counts = {"epsilon": e, "lower": 0.02, "wide": 0.6}, {"count(token, over=trajectory)": n}
            radius = expected(e, n)
            assert number(said, values, counts) == pytest.approx(radius, rel=1e-12) and radius > 0
            assert interval(ends, values, counts) == pytest.approx((-radius, radius), rel=1e-12)


def test_a_gate_that_passes_everything_on_short_rows_has_no_bound_there():
    gate = Gate(where(T > 3, clip(residual, -epsilon / 4, epsilon / 2), residual))
    said = facts(two(outer=gate, inner=identity_gate(), split=log_ratio(scale=1 / T)), "radius")["hierarchy"]
    assert said == "where(count(token, over=trajectory) > 3, epsilon/4, inf)"


def test_projections_have_no_certified_radius():
    h = quiver(EVERYWHERE, assume=(), orthogonalise="projection")
    [fact] = facts_of(h, "radius")
    assert fact.value == "not certified"
    assert "least-squares" in fact.argument
    free = quiver({token: clip_gate(epsilon).per(mass)}, assume=(), orthogonalise="projection")
    assert facts(free, "radius") == {"hierarchy": "epsilon/2"}


@pytest.mark.thorough
def test_gates_that_cancel_each_other_do_not_get_radius_0():
    """`𝒢` is the identity near `r = 1`, though no gate is. The report has no radius then."""
    for name in ("apc_obj", "apc, score", "sapo, score", "residual against the gated base", "tree, base made up for"):
        assert not facts_of(SPECS[name].h, "radius")
    assert facts(SPECS["sapo"].h, "radius") == {"hierarchy": "0"}


def test_the_radius_of_a_clip_that_reads_the_advantage_covers_both_signs():
    """The facts of a score estimator are those of its gate."""
    h = alone(pessimistic_clip_gate(low, high), objective=trajectory_mean().score(), gives_up=VALUE)
    assert facts(h, "radius") == facts(h.replace(objective=trajectory_mean(), gives_up={}), "radius")


# ---------------------------------------------------------------- the radius where strata cross: means of crossing strata add to a residual and subtract from it


BUDGET = 0.25
FEW, MANY = 10, 400  # trajectories beside one in its domain and in its modality, and in neither


def batch(h):
    """One token per trajectory: the one that is looked at, those beside it, the others; and which sign each one has."""
    domains = ["here"] + ["here"] * FEW + ["there"] * FEW + ["there"] * MANY
    modalities = ["here"] + ["there"] * FEW + ["here"] * FEW + ["there"] * MANY
    signs = torch.tensor([1.0] + [-1.0] * 2 * FEW + [1.0] * MANY, dtype=torch.float64)
    return index(h, offsets=list(range(len(signs) + 1)), domain=domains, modality=modalities), signs


@pytest.mark.parametrize(("split", "times"), [(log_ratio(), 4), (signed_log_ratio(), 2)], ids=["log", "signed"])
def test_no_batch_exceeds_the_radius_of_a_crossing_and_one_comes_close(split, times):
    """`s_v - s_domain - s_modality + s_batch`: four means of |log r| at most, of one sign channel two and two."""
    h = crossed()
    h = h.replace(decomposition=split, gates={**h.gates, trajectory: clip_gate(BUDGET).per(N)})
    radius = float(facts_of(h, "radius")[0].value)
    assert radius == pytest.approx(BUDGET / times, rel=1e-15)
    where, signs = batch(h)
    for size, passes in ((radius * (1 - 1e-9), True), (radius * 1.2, False)):
        x = size * signs
        change = float((operator(h).gate(x, where).log() - x).abs().max())
        assert (change < 1e-14) == passes


# ---------------------------------------------------------------- ends of ranges: open intervals, a root with sign channels, unbounded weights


old, rollout = policies("old rollout")
C = Parameter("C", default=2, lower=1)
rho = exp(log_prob(old) - log_prob(rollout))
FIFTH = 0.2


def fact(name, gate, split=None, objective=None, **more):
    h = Hierarchy(
        name="one",
        gates={token: Gate(gate)},
        decomposition=split or log_ratio(),
        objective=objective or token_mean(),
        **more,
    )
    (found,) = facts_of(h, name)
    return found


@pytest.mark.parametrize("gate", [clip(residual, -3, FIFTH), minimum(residual, FIFTH)])
def test_the_facts_of_a_split_root_ignore_its_gate_below_0(gate):
    """No channel has a residual below 0 there, so the upper bound gives the largest coefficient."""
    assert fact("amplification", gate, signed_log_ratio()).value == "exp(0.2)"


@pytest.mark.parametrize(("is_passed", "within"), [(residual < 2, "below"), (residual <= 2, "at most")])
def test_a_radius_says_whether_the_gate_passes_its_end(is_passed, within):
    found = fact("radius", where(is_passed, residual, 0))
    assert found.value == "2"
    assert f"every |log r| is {within} this" in found.argument


def test_amplification_leaves_penalties_out_and_says_so():
    off = {"kl": Penalty(token_log_ratio**2 / 2)}
    assert "beside what penalties add" in fact("amplification", clip(residual, -1, 1), penalties=off).argument
    assert "penalties" not in fact("amplification", clip(residual, -1, 1)).argument


def test_an_unbounded_weight_makes_the_product_unbounded():
    found = fact("amplification", clip(residual, -1, 1), objective=token_mean().weigh(minimum(rho, C)).weigh(rho))
    assert found.value == "exp(1); times w"
