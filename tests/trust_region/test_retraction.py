"""The retraction onto the trust region: by hand, its lemma, and states that it leaves unchanged."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.trust_region_samples import Sample, samples, spent, tensor

from fibration.trust_region.apc import apc_gate, retract
from fibration.trust_region.divergences import tv_per_state
from fibration.trust_region.maximiser import centred

DELTAS = st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0])


@given(samples(), st.sampled_from([0.05, 0.3, 1.0, 5.0]))
def test_the_retraction_meets_its_lemma(sample: Sample, delta):
    u = centred(torch.expm1(sample.log_ratio), sample.state)
    found = retract(u, sample.state, delta)
    before, after = spent(u, sample.state), spent(found, sample.state)
    assert (after <= delta * (1 + 1e-12)).all()
    beyond = before > delta * (1 + 1e-9)
    assert (after[beyond] < delta).all()
    inside = before < delta * (1 - 1e-9)
    torch.testing.assert_close(found[inside], u[inside], rtol=1e-12, atol=1e-14)
    assert tv_per_state(found, sample.state).counts.sum() == len(u)
    assert centred(found, sample.state).sub(found).abs().max() < 1e-12
    # the gate and the mean by the definition
    n = {s: sample.count(s) for s in sample.states}
    bound = [
        max(n[p[0]] * (delta - d) + abs(v), 0.0)
        for p, d, v in zip(sample.tokens, before.tolist(), u.tolist(), strict=True)
    ]
    clipped = [max(-b, min(v, b)) for b, v in zip(bound, u.tolist(), strict=True)]
    means = {s: sum(c for p, c in zip(sample.tokens, clipped, strict=True) if p[0] == s) / n[s] for s in n}
    expected = [c - means[p[0]] for p, c in zip(sample.tokens, clipped, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_equal_ratios_leave_rounding_that_is_no_breach_of_the_constraint():
    state = torch.zeros(3).long()
    u = centred(torch.expm1(torch.full((3,), 0.5359739942013846, dtype=torch.float64)), state)
    assert float(u.abs().max()) > 0
    assert retract(u, state, 0.1).abs().max() < 1e-15
    single = centred(torch.linspace(-0.3, 0.4, 9, dtype=torch.float32), torch.zeros(9).long()).float()
    retract(single, torch.zeros(9).long(), 0.1)


def test_the_retraction_equals_the_result_written_by_hand():
    """Budget 4.5 of 6 spent: everything shrinks by 1.5, and then by the mean."""
    u, state = tensor([3.0, -1.0, -2.0]), torch.zeros(3).long()
    assert apc_gate(u, state, 1.5).tolist() == [1.5, 0.0, -0.5]
    assert retract(u, state, 1.5).tolist() == pytest.approx([1.5 - 1 / 3, -1 / 3, -0.5 - 1 / 3])


@given(samples(), DELTAS)
def test_gated_deviations_are_within_the_budget(sample: Sample, delta):
    """Centred or not; so gating once more, as def:clip_proj prints it, changes nothing."""
    once = apc_gate(torch.expm1(sample.log_ratio), sample.state, delta)
    assert (spent(once, sample.state) <= delta * (1 + 1e-12)).all()
    torch.testing.assert_close(apc_gate(once, sample.state, delta), once, rtol=1e-11, atol=1e-14)
