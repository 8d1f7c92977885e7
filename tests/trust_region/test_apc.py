"""APC-Obj: the gate against its closed form, its derivatives, and the objectives."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles.trust_region_samples import Sample, deviation_of, refuses_with_a_rule, samples, spent, tensor

from fibration.errors import BatchError, HierarchyIndexError, ParameterError
from fibration.trust_region.apc import (
    Regime,
    apc_gate,
    apc_gated_ratio,
    apc_maximiser,
    apc_objective,
    apc_objective_discounted,
    apc_projected_objective,
    apc_regimes,
    apc_surrogate,
    retract,
)
from fibration.trust_region.maximiser import centred

CLOSED = json.loads((Path(__file__).parents[1] / "vectors" / "closed_forms.json").read_text())["cases"]
NAN = float("nan")
DELTAS = st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0])
GAMMAS = st.sampled_from([0.3, 0.9, 0.99])


# ---------------------------------------------------------------- the gate


@pytest.mark.parametrize("number", range(len(CLOSED)))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gated_ratios_equal_the_closed_form(number, dtype):
    case, apc = CLOSED[number], CLOSED[number]["apc"]
    x = torch.tensor(case["log_ratio"], dtype=dtype)
    state = torch.tensor(apc["state_of_token"])
    found = apc_gated_ratio(x, state, apc["delta"])
    assert found.tolist() == pytest.approx(apc["gated_ratio"], rel=1e-12 if dtype == torch.float64 else 2e-5, abs=0)
    # the same with masked tokens between, whose log ratios mean nothing
    mask = torch.zeros(3 * len(x), dtype=torch.bool)
    mask[1::3] = True
    wide, states = torch.full((len(mask),), NAN, dtype=dtype), torch.zeros(len(mask), dtype=torch.int64)
    wide[mask], states[mask] = x, state
    gated = apc_gated_ratio(wide, states, apc["delta"], mask)
    assert torch.equal(gated[mask], found)
    assert (gated[~mask] == 1).all()


def test_the_closed_forms_reach_every_regime():
    seen = set()
    for case in CLOSED:
        apc = case["apc"]
        x = tensor(case["log_ratio"])
        regimes = apc_regimes(x, torch.tensor(apc["state_of_token"]), apc["delta"])
        gated = tensor(apc["gated_ratio"])
        assert torch.equal(regimes == Regime.ZEROED, (gated == 1) & (regimes != Regime.PASSED))
        torch.testing.assert_close(gated[regimes == Regime.PASSED], x.exp()[regimes == Regime.PASSED])
        seen |= set(regimes.tolist())
    assert {Regime.ROLLED_BACK, Regime.ZEROED} <= seen


@given(samples(), DELTAS)
def test_the_gate_equals_the_papers_clip(sample: Sample, delta):
    deviation = deviation_of(sample.log_ratio_of)
    expected = sample.gated(deviation, delta)
    found = sample.pairs(apc_gate(sample.tensor(deviation), sample.state, delta))
    assert found == pytest.approx(expected, rel=1e-11, abs=1e-13)
    ratio = apc_gated_ratio(sample.log_ratio, sample.state, delta)
    assert sample.pairs(ratio - 1) == pytest.approx(expected, rel=1e-11, abs=1e-13)
    assert (ratio > 0).all()


@given(samples(), DELTAS)
def test_regimes_equal_the_papers_zones(sample: Sample, delta):
    """eq:zone_P, eq:zone_R, eq:zone_Z as written, and what each does to the ratio."""
    deviation = deviation_of(sample.log_ratio_of)
    regimes = apc_regimes(sample.log_ratio, sample.state, delta)
    gated = apc_gate(torch.expm1(sample.log_ratio), sample.state, delta)
    for p, regime, u, v in zip(
        sample.tokens, regimes.tolist(), torch.expm1(sample.log_ratio).tolist(), gated.tolist(), strict=True
    ):
        over = sample.tv(p[0], deviation) - delta
        share = abs(deviation[p]) / sample.count(p[0])
        if min(abs(over), abs(share - over)) > 1e-12:  # else rounding decides
            assert regime == (Regime.PASSED if over < 0 else Regime.ROLLED_BACK if share > over else Regime.ZEROED)
        assert {Regime.PASSED: u == v, Regime.ROLLED_BACK: 0 < abs(v) < abs(u), Regime.ZEROED: v == 0}[regime]


def test_regimes_at_their_edges_are_exact():
    """Numbers without rounding: state 0 spends 4 tokens' worth of 1/4 exactly, state 1 twice its budget."""
    deviation = tensor([0.5, -0.5, 0.0, 0.0, 0.5, 0.0, 1.0, -0.5])
    state = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    x = torch.log1p(deviation)
    assert apc_gate(deviation, state, 0.25).tolist() == [0.5, -0.5, 0, 0, 0, 0, 0, 0]
    assert apc_gate(deviation, state, 0.3125).tolist() == [0.5, -0.5, 0, 0, 0, 0, 0.25, 0]
    assert apc_regimes(x, state, 0.3125)[4:].tolist() == [2, 2, 1, 2]
    mask = torch.tensor([True] * 7 + [False])
    assert apc_regimes(x, state, 0.3125, mask)[-1] == Regime.MASKED


# ---------------------------------------------------------------- derivatives


def test_the_gradient_on_policy_is_the_advantage():
    """At r = 1 every |r - 1| has its kink, and the objective has none."""
    x = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    advantages, state = tensor([1.0, -2.0, 0.5, 3.0, 0.0, -1.0]), torch.tensor([0, 0, 0, 1, 1, 2])
    for delta in (0.0, 0.1):
        (slope,) = torch.autograd.grad(apc_objective(x, advantages, state, delta), x)
        torch.testing.assert_close(slope, advantages / 6, rtol=1e-15, atol=0)


@given(samples(), st.sampled_from([0.07, 0.31, 1.01]))
def test_derivatives_agree_with_differences(sample: Sample, delta):
    x = torch.tensor([0.3 * (-1) ** i + 0.01 * i for i in range(len(sample.tokens))], dtype=torch.float64)
    deviation = torch.expm1(x)
    excess = (spent(deviation, sample.state) - delta) * tensor([sample.count(s) for s, _ in sample.tokens])
    assume(float(torch.minimum(excess.abs(), (deviation.abs() - excess).abs()).min()) > 1e-4)  # no edge nearby
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: apc_gated_ratio(v, sample.state, delta), x, atol=1e-7)


def test_slopes_on_the_edges_are_those_of_the_closed_inner_region():
    u = tensor([0.5, -0.5, 0.0, 0.0]).requires_grad_()
    state = torch.zeros(4).long()
    jacobian = torch.autograd.functional.jacobian(lambda v: apc_gate(v, state, 0.25), u)
    assert torch.equal(jacobian, torch.eye(4).double())
    # 1 to spend of 2: tokens of 0.5 lie at their bound 0 exactly, and stay there
    u = tensor([0.5, -0.5, 1.0])
    jacobian = torch.autograd.functional.jacobian(lambda v: apc_gate(v, state[:3], 0.5), u)
    assert jacobian[:2].abs().max() == 0
    assert jacobian[2].tolist() == [-1.0, 1.0, 0.0]


@pytest.mark.parametrize("garbage", [NAN, float("inf"), -1e30])
def test_masked_values_reach_neither_value_nor_gradient(garbage):
    mask = torch.tensor([[True, False, True], [True, True, False]])
    state = torch.tensor([[0, 0, 0], [1, 0, 1]])
    step = torch.tensor([[0, -1, 1], [0, 1, -1]])

    def filled(values):
        result = torch.full((2, 3), garbage, dtype=torch.float64)
        result[mask] = tensor(values)
        return result

    advantages = filled([1.0, -2.0, 0.5, 1.0])
    for name, objective in OBJECTIVES.items():
        x = filled([0.4, -0.1, 0.2, -0.3]).requires_grad_()
        value = objective(x, advantages, state, step, mask)
        expected = objective(x.detach()[mask], advantages[mask], state[mask], step[mask], None)
        assert torch.equal(value.detach(), expected), name
        value.backward()
        assert (x.grad[~mask] == 0).all(), name
        assert x.grad[mask].isfinite().all(), name
        assert x.grad.abs().max() > 0, name
    u = centred(filled([0.4, -0.1, 0.2, -0.3]), state, mask)
    u[~mask] = garbage
    retracted = retract(u, state, 0.1, mask)
    assert torch.equal(retracted[mask], retract(u[mask], state[mask], 0.1))
    assert (retracted[~mask] == 0).all()
    best = apc_maximiser(advantages, state, 0.1, None, mask)
    assert torch.equal(best[mask], apc_maximiser(advantages[mask], state[mask], 0.1))


OBJECTIVES = {
    "plain": lambda x, a, s, t, m: apc_objective(x, a, s, 0.2, m),
    "discounted": lambda x, a, s, t, m: apc_objective_discounted(x, a, s, t, 0.2, 0.9, m),
    "surrogate": lambda x, a, s, t, m: apc_surrogate(x, a, s, t, 0.2, 0.9, m),
    "projected": lambda x, a, s, t, m: apc_projected_objective(x, a, s, t, 0.2, 0.9, m),
}


# ---------------------------------------------------------------- the objectives


@given(samples(), DELTAS, GAMMAS)
def test_objectives_equal_the_papers_sums(sample: Sample, delta, gamma):
    deviation = deviation_of(sample.log_ratio_of)
    gated, correction = sample.gated(deviation, delta), sample.correction(deviation, delta)
    advantage = sample.advantage_of
    plain = sum((gated[p] + 1) * advantage[p] for p in sample.tokens) / len(sample.tokens)
    args = sample.advantages, sample.state
    assert float(apc_objective(sample.log_ratio, *args, delta)) == pytest.approx(plain, rel=1e-10, abs=1e-12)
    discounted = sample.discounted({p: (gated[p] + 1) * advantage[p] for p in sample.n}, gamma)
    found = apc_objective_discounted(sample.log_ratio, *args, sample.step, delta, gamma)
    assert float(found) == pytest.approx(discounted, rel=1e-10, abs=1e-10)
    surrogate = sample.discounted(
        {p: gated[p] * advantage[p] + (1 - correction[p[0]]) * advantage[p] for p in sample.n}, gamma
    )
    u = sample.tensor(deviation)
    found = apc_surrogate(u, *args, sample.step, delta, gamma)
    assert float(found) == pytest.approx(surrogate, rel=1e-10, abs=1e-10)
    # eq:apc_obj_proj_form, for all deviations
    projected = apc_projected_objective(u, *args, sample.step, delta, gamma)
    assert float(projected) == pytest.approx(surrogate, rel=1e-10, abs=1e-10)


@given(samples(), DELTAS, GAMMAS)
def test_the_surrogate_is_the_objective_when_advantages_are_centred(sample: Sample, delta, gamma):
    """lem:apc_obj_equiv_surrogate."""
    advantages = centred(sample.advantages, sample.state)
    args = advantages, sample.state, sample.step, delta, gamma
    found = apc_surrogate(torch.expm1(sample.log_ratio), *args)
    assert float(found) == pytest.approx(float(apc_objective_discounted(sample.log_ratio, *args)), abs=1e-9)


# ---------------------------------------------------------------- errors

X, A, S, T = tensor([0.1, 0.2, -0.3]), tensor([1.0, 2.0, -1.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
NOTHING = torch.zeros(3, dtype=torch.bool)
BAD = {
    "gate mask": (lambda: apc_gated_ratio(X, S, 0.1, NOTHING), HierarchyIndexError, "the mask keeps no token"),
    "objective mask": (lambda: apc_objective(X, A, S, 0.1, NOTHING), HierarchyIndexError, "the mask keeps no token"),
    "retract mask": (lambda: retract(X, S, 0.1, NOTHING), HierarchyIndexError, "the mask keeps no token"),
    "negative": (lambda: apc_gate(X, S, -0.1), ParameterError, "delta is -0.1"),
    "infinite": (lambda: apc_regimes(X, S, float("inf")), ParameterError, "delta is inf"),
    "several": (lambda: apc_gated_ratio(X, S, X), ParameterError, r"delta has shape \[3\]"),
    "overflow": (lambda: apc_objective(X + 1000, A, S, 0.1), BatchError, r"token \[0\] is 1000.1"),
    "nan": (lambda: apc_gate(X / 0 * 0, S, 0.1), BatchError, r"deviation of token \[0\] is nan"),
    "advantage": (lambda: apc_objective(X, A * NAN, S, 0.1), BatchError, r"advantages of token \[0\] is nan"),
    "gamma": (lambda: apc_surrogate(X, A, S, T, 0.1, 1.0), ParameterError, "gamma is 1"),
    "constraint": (lambda: retract(X, S + 5, 0.1), BatchError, "the deviations of state 5 have mean 0.15"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_what_is_wrong(case):
    refuses_with_a_rule(*BAD[case])
