"""TV-TRPO: the closed-form maximiser against programmes solved in rationals and the paper's sums."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.trust_region_samples import (
    Sample,
    deviation_of,
    programme,
    refuses_with_a_rule,
    samples,
    smallest_maximiser,
    tensor,
)

from fibration.errors import BatchError, HierarchyIndexError, ParameterError
from fibration.trust_region.divergences import tv_per_state
from fibration.trust_region.maximiser import apc_radius, centred, tv_trpo_maximiser, tv_trpo_objective, unit_maximiser
from fibration.trust_region.radius import trpo_radius

NAN = float("nan")


def unit(sample: Sample):
    return unit_maximiser(sample.advantages, sample.state, sample.action)


def trpo(sample: Sample, gamma: float):
    return tv_trpo_maximiser(sample.advantages, sample.state, sample.step, gamma, sample.action)


# ---------------------------------------------------------------- the unit problem


@given(samples())
def test_the_unit_maximiser_is_feasible_and_no_programme_finds_more(sample: Sample):
    found = unit(sample)
    deviation = sample.pairs(found.deviation)
    assert found.value.ids.tolist() == sample.states
    for s, value in zip(sample.states, found.value.values.tolist(), strict=True):
        here = {a: (sample.n[s, a], deviation[s, a], sample.advantage_of[s, a]) for a in sample.actions(s)}
        assert sum(n * d for n, d, _ in here.values()) == pytest.approx(0, abs=1e-12)
        assert sum(n * d * a for n, d, a in here.values()) == pytest.approx(value, abs=1e-12)
        best = programme(sample, {z: int(z == s) for z in sample.states}, 1)
        assert value == best
        assert sample.tv(s, deviation) == pytest.approx(int(best > 0), rel=1e-14, abs=0)


@given(samples())
def test_without_actions_the_value_is_the_same(sample: Sample):
    with_pairs, without = unit(sample), unit_maximiser(sample.advantages, sample.state)
    torch.testing.assert_close(with_pairs.value.values, without.value.values)
    assert (centred(without.deviation, sample.state) - without.deviation).abs().max() < 1e-12
    gain = (without.deviation * sample.advantages).sum()
    assert float(gain) == pytest.approx(float(without.value.values.sum()), abs=1e-12)


@given(samples())
def test_the_maximiser_has_the_smallest_norm(sample: Sample):
    """Σ_a Δ² over the actions (def:sample_tv_trpo): advantages tie in most samples."""
    deviation = sample.pairs(unit(sample).deviation)
    for s in sample.states:
        expected = smallest_maximiser(sample, s)
        assert {p: deviation[p] for p in expected} == pytest.approx(expected, rel=1e-14, abs=0)


TIED = Sample(
    tokens=((0, 1), (0, 1), (0, 2), (0, 3), (0, 4), (0, 4), (0, 4), (0, 5)),
    lengths=(8,),
    log_ratio_of={},
    advantage_of={(0, 1): 2.0, (0, 2): 2.0, (0, 3): 0.5, (0, 4): -1.0, (0, 5): -1.0},
)


def test_ties_share_as_the_smallest_norm_over_actions_does():
    found = unit(TIED)
    deviation = TIED.pairs(found.deviation)
    assert found.value.values.tolist() == [8 / 2 * 3]
    # 4 of 8 each way: n = 2 and 1 share as 2:1, so 4/(2·2 + 1·1) for each n; n = 3 and 1, 4/(3·3 + 1·1)
    expected = {1: Fraction(8, 5), 2: Fraction(4, 5), 3: 0, 4: Fraction(-6, 5), 5: Fraction(-2, 5)}
    assert smallest_maximiser(TIED, 0) == {(0, a): v for a, v in expected.items()}
    assert deviation == pytest.approx({(0, a): v for a, v in expected.items()}, rel=1e-14, abs=0)
    by_token = unit_maximiser(TIED.advantages, TIED.state).deviation
    assert len(set(by_token[TIED.advantages == 2].tolist())) == 1


DEGENERATE = {
    "one token": ([0.7], [3], None),
    "one token per state": ([1.0, -2.0, 0.5], [0, 1, 2], None),
    "one action of two tokens": ([1.0, 1.0], [0, 0], [4, 4]),
    "all zero": ([0.0, 0.0, 0.0], [0, 0, 1], None),
    "all equal": ([2.0, 2.0, 2.0], [0, 0, 0], None),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("gamma", [0.3, 0.99, 1.0])
def test_without_gain_the_deviation_is_0(case, gamma):
    advantages, state, action = DEGENERATE[case]
    advantages, state = tensor(advantages), torch.tensor(state)
    action = None if action is None else torch.tensor(action)
    found = unit_maximiser(advantages, state, action)
    assert (found.deviation == 0).all()
    assert (found.value.values == 0).all()
    update = tv_trpo_maximiser(advantages, state, torch.zeros_like(state), gamma, action)
    assert (update.deviation == 0).all()
    assert update.radius == 0
    assert apc_radius(advantages, state, torch.zeros_like(state), gamma, action) == 0


def test_two_actions_equal_the_result_written_by_hand():
    """One state, tokens with A = 3, 1, -1 and one of the first: half of T_s each way, over one token."""
    found = unit_maximiser(tensor([3.0, 1.0, -1.0]), torch.tensor([8, 8, 8]))
    assert found.deviation.tolist() == [1.5, 0.0, -1.5]
    assert found.value.values.tolist() == [6.0]
    assert found.value.counts.tolist() == [3]
    update = tv_trpo_maximiser(tensor([3.0, 1.0, -1.0]), torch.tensor([8, 8, 8]), torch.tensor([0, 1, 2]), 0.5)
    assert float(update.value) == 2.0
    assert float(update.radius) == pytest.approx(1 / 12, rel=1e-14, abs=0)
    assert {v.dtype for v in (found.deviation, found.value.values, update.deviation, update.radius)} == {torch.float64}
    assert update.deviation.tolist() == pytest.approx([1.5 / 12, 0, -1.5 / 12])


# ---------------------------------------------------------------- TV-TRPO


@given(samples(), st.sampled_from([0.2, 0.5, 0.9, 0.99]))
def test_the_objective_equals_the_papers_sum(sample: Sample, gamma):
    deviation = deviation_of(sample.log_ratio_of)
    found = tv_trpo_objective(sample.tensor(deviation), sample.advantages, sample.state, sample.step, gamma)
    expected = sample.objective(deviation, gamma)
    assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-10)


@settings(max_examples=40)
@given(samples(), st.sampled_from([0.2, 0.5, 0.9, 0.99]))
def test_the_maximiser_equals_a_linear_programme_and_a_parabola_in_the_radius(sample: Sample, gamma):
    """A bound t on all D̂_TV(s) allows a gain of t·g and costs p·t²: best at t = g/2p, where that is g²/4p."""
    assume(any(sample.advantage_of[p] for p in sample.n))
    weight = {s: sample.share(s, gamma) / sample.count(s) / (1 - gamma) for s in sample.states}
    gain = programme(sample, weight, 1)
    for t in (Fraction(1, 20), Fraction(3, 5)):  # the programme is linear in its budget (eq:linear_scaling)
        assert programme(sample, weight, t) == t * gain
    penalty = Fraction(sample.penalty(gamma))
    update = trpo(sample, gamma)
    assert float(update.radius) == pytest.approx(gain / (2 * penalty), rel=1e-12, abs=0)
    assert float(update.value) == pytest.approx(gain * (1 - Fraction(gamma)), rel=1e-12, abs=0)
    deviation = sample.pairs(update.deviation)
    assert sample.objective(deviation, gamma) == pytest.approx(gain**2 / (4 * penalty), rel=1e-11, abs=1e-13)
    for s, value in zip(sample.states, unit(sample).value.values.tolist(), strict=True):
        assert sum(sample.n[s, a] * deviation[s, a] for a in sample.actions(s)) == pytest.approx(0, abs=1e-12)
        assert sample.tv(s, deviation) == pytest.approx(float(update.radius) if value else 0.0, abs=1e-12)


@given(samples(), st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]))
def test_the_radius_is_bounded_by_trpos(sample: Sample, gamma):
    """lem:M_bound, lem:apc_obj_tr, lem:tv_trpo_apc_obj_in_trust_region."""
    update = trpo(sample, gamma)
    radius = apc_radius(sample.advantages, sample.state, sample.step, gamma, sample.action)
    assert torch.equal(update.radius, radius)
    assert 0 <= float(update.value) <= float(sample.advantages.abs().max()) + 1e-12
    assert float(radius) <= float(trpo_radius(gamma)) * (1 + 1e-12)
    spent = [sample.tv(s, sample.pairs(update.deviation)) for s in sample.states]
    assert max(spent) == pytest.approx(float(radius), rel=1e-12, abs=1e-15)


def test_the_bound_is_attained():
    """Two opposite advantages in every state: M is the norm, and the radius TRPO's."""
    advantages, state = tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([0, 0, 1, 1])
    step = torch.tensor([0, 0, 1, 1])
    assert float(apc_radius(advantages, state, step, 0.7)) == pytest.approx(0.3 / 5.6, rel=1e-14, abs=0)
    assert float(trpo_radius(0.7)) == pytest.approx(0.3 / 5.6, rel=1e-14, abs=0)


def test_the_update_vanishes_as_gamma_tends_to_one():
    """thm:trpo_vanishing."""
    advantages, state = tensor([1.0, -2.0, 0.5, 0.1]), torch.tensor([0, 0, 1, 1])
    step = torch.tensor([0, 1, 0, 1])
    radii = [float(apc_radius(advantages, state, step, 1 - 10.0**-k)) for k in range(1, 10)]
    assert radii == sorted(radii, reverse=True)
    assert 0 < radii[-1] < 1e-9
    update = tv_trpo_maximiser(advantages, state, step, 1.0)
    assert update.radius == 0
    assert (update.deviation == 0).all()
    assert float(update.value) == pytest.approx((2 * 1.5 + 2 * 0.2) / 4)  # at γ = 1 the weights are T_s/T


def test_long_contexts_do_not_underflow():
    """γ^t is 0 in float64 from step 10^6 on; only quotients matter."""
    advantages, state = tensor([1.0, -1.0, 3.0, 0.0]), torch.tensor([0, 0, 1, 1])
    early, late = (
        tv_trpo_maximiser(advantages, state, torch.tensor([0, 1, 1, 2]) + shift, 0.9) for shift in (0, 10**7)
    )
    torch.testing.assert_close(late.deviation, early.deviation)


# ---------------------------------------------------------------- masks, shapes, errors


@pytest.mark.parametrize("garbage", [NAN, float("inf")])
def test_masked_values_are_never_read(garbage):
    mask = torch.tensor([[True, False, True], [True, True, False]])
    advantages = torch.full((2, 3), garbage, dtype=torch.float64)
    advantages[mask] = tensor([1.0, -2.0, 0.5, 0.5])
    state = torch.tensor([[0, 0, 0], [1, 0, 1]])
    step = torch.tensor([[0, -9, 1], [0, 1, -9]])
    action = torch.tensor([[0, 1, 1], [0, 2, 3]])
    found = tv_trpo_maximiser(advantages, state, step, 0.8, action, mask)
    packed = tv_trpo_maximiser(advantages[mask], state[mask], step[mask], 0.8, action[mask])
    assert torch.equal(found.deviation[mask], packed.deviation)
    assert (found.deviation[~mask] == 0).all()
    assert found.deviation.abs().max() > 0
    assert torch.equal(found.radius, packed.radius)
    deviation = torch.full((2, 3), garbage, dtype=torch.float64)
    deviation[mask] = tensor([0.1, 0.2, 0.0, -0.3])
    deviation.requires_grad_()
    value = tv_trpo_objective(deviation, advantages, state, step, 0.8, mask)
    expected = tv_trpo_objective(deviation.detach()[mask], advantages[mask], state[mask], step[mask], 0.8)
    assert torch.equal(value.detach(), expected)
    value.backward()
    assert deviation.grad.isfinite().all()
    assert (deviation.grad[~mask] == 0).all()
    level = centred(deviation.detach(), state, mask)
    assert (level[~mask] == 0).all()
    assert tv_per_state(level, state, mask).counts.tolist() == [3, 1]


@given(samples())
def test_centred_values_have_mean_zero_per_state(sample: Sample):
    values = centred(sample.log_ratio, sample.state)
    for s in sample.states:
        here = sample.state == s
        assert float(values[here].sum()) == pytest.approx(0, abs=1e-12)
        moved = (sample.log_ratio - values)[here]
        assert (moved - moved[0]).abs().max() < 1e-12


A, S, T = tensor([1.0, 2.0, -1.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])

BAD = {
    "empty mask": (lambda: unit_maximiser(A, S, None, torch.zeros(3, dtype=torch.bool)), HierarchyIndexError, "the mask keeps no token"),
    "nan": (lambda: unit_maximiser(tensor([1.0, NAN, 2.0]), S), BatchError, r"advantages of token \[1\] is nan"),
    "two advantages": (lambda: unit_maximiser(A, S, torch.tensor([4, 4, 4])), BatchError, "state 0 with action 4 has two advantages"),
    "action shape": (lambda: unit_maximiser(A, S, T[:2]), BatchError, r"action has shape \[2\]"),
    "negative step": (lambda: apc_radius(A, S, T - 1, 0.5), HierarchyIndexError, r"step of token \[0\] is -1"),
    "float step": (lambda: apc_radius(A, S, A, 0.5), HierarchyIndexError, "step: torch.float64"),
    "gamma 0": (lambda: tv_trpo_maximiser(A, S, T, 0.0), ParameterError, "gamma is 0"),
    "gamma many": (lambda: tv_trpo_maximiser(A, S, T, A), ParameterError, r"gamma has shape \[3\]"),
    "gamma 1": (lambda: tv_trpo_objective(A, A, S, T, 1.0), ParameterError, "gamma is 1"),
    "shapes": (lambda: tv_trpo_objective(A[:2], A, S, T, 0.5), BatchError, r"state has shape \[3\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_errors_name_what_is_wrong(case):
    refuses_with_a_rule(*BAD[case])
