"""Both algorithms of APC make the same update, and reach the maximum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.trust_region_samples import Sample, programme, samples

from fibration.trust_region.apc import (
    apc_maximiser,
    apc_objective_discounted,
    apc_projected_objective,
)
from fibration.trust_region.maximiser import apc_radius, centred, tv_trpo_maximiser, tv_trpo_objective, unit_maximiser

DELTAS = st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0])
GAMMAS = st.sampled_from([0.3, 0.9, 0.99])


def problem(sample: Sample, gamma: float):
    """Centred advantages (eq:adv_centering), which every pair has one of."""
    centre = dict(zip(sample.tokens, centred(sample.advantages, sample.state).tolist(), strict=True))
    advantages = sample.tensor(centre)
    delta = apc_radius(advantages, sample.state, sample.step, gamma, sample.action)
    return advantages, (advantages, sample.state, sample.step, delta, gamma)


def weights_of(sample: Sample, args):
    """What the objective multiplies the advantages of a state's tokens by, where nothing deviates."""
    one = {s: (sample.state == s).nonzero()[0] for s in sample.states}
    nothing = torch.zeros(len(sample.tokens), dtype=torch.float64)
    return {
        s: float(apc_projected_objective(nothing, nothing.index_fill(0, i, 1.0), *args[1:])) for s, i in one.items()
    }


@given(samples(), GAMMAS)
def test_both_algorithms_make_the_same_update(sample: Sample, gamma):
    """thm:apc_obj_trpo_equiv: the deviations agree, and each objective takes the value the proof gives it."""
    advantages, args = problem(sample, gamma)
    delta = args[3]
    ours = apc_maximiser(advantages, sample.state, delta, sample.action)
    theirs = tv_trpo_maximiser(advantages, sample.state, sample.step, gamma, sample.action)
    torch.testing.assert_close(ours, theirs.deviation, rtol=1e-12, atol=1e-15)
    value = delta * theirs.value / (1 - gamma)
    assert float(apc_projected_objective(ours, *args)) == pytest.approx(float(value), rel=1e-9, abs=1e-9)
    assert float(value) == pytest.approx(programme(sample, weights_of(sample, args), float(delta)), rel=1e-9, abs=1e-9)
    penalised = tv_trpo_objective(ours, advantages, sample.state, sample.step, gamma)
    assert float(penalised) == pytest.approx(float(value) / 2, rel=1e-9, abs=1e-9)  # half of the gain is paid
    if (ours > -1).all():
        assert float(apc_objective_discounted(torch.log1p(ours), *args)) == pytest.approx(float(value), abs=1e-9)


@given(samples(), GAMMAS, st.integers(0, 10**6), st.sampled_from([None, 0.2, 1.0]))
def test_random_search_never_beats_the_maximiser(sample: Sample, gamma, seed, relaxed):
    advantages, args = problem(sample, gamma)
    if relaxed is not None:  # the paper's relaxation: any other radius
        args = (*args[:3], relaxed, gamma)
    best = apc_maximiser(advantages, sample.state, args[3], sample.action)
    value = float(apc_projected_objective(best, *args))
    gain = value - float(apc_projected_objective(torch.zeros_like(best), *args))
    assert gain == pytest.approx(programme(sample, weights_of(sample, args), float(args[3])), rel=1e-9, abs=1e-9)
    generator = torch.Generator().manual_seed(seed)
    scale = max(float(best.abs().max()), 1e-3)
    for size in (3.0, 1.0, 0.1, 1e-3):
        noise = size * scale * torch.randn(len(best), dtype=torch.float64, generator=generator)
        for candidate in (noise, best + noise, best * (1 + size), best * (1 - size)):
            feasible = centred(candidate, sample.state)
            assert float(apc_projected_objective(feasible, *args)) <= value + 1e-9 * max(1, abs(value))


@settings(max_examples=30)
@given(samples(), DELTAS)
def test_the_maximiser_scales_with_the_radius(sample: Sample, delta):
    unit = unit_maximiser(sample.advantages, sample.state, sample.action).deviation
    assert torch.equal(apc_maximiser(sample.advantages, sample.state, delta, sample.action), delta * unit)
