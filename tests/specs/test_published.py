"""Every shipped loss that somebody published against its source's own formula, in float64 on random ragged batches.

Off policy, with every branch of the formula taken: value and gradient, on rows that are packed and on padded ones. What
these agree to stands in `docs/losses.md`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.published import Rows
from oracles.published_comparison import SEEDS, SOURCES, agreement, compiled, parameters, published, rows
from support import packed, spec
from thorough import ALL, some

from fibration.language.loading import shipped

BOUND = 1e-9

# Ours: the paper's own, whose definition `test_shipped.py` holds them against as matrices.
OURS = {
    *("apc_obj", "gspo_residual", "fiberpo_inward", "fiberpo_inward_clip"),
    *("fiberpo_domain_inward", "fiberpo_domain_inward_clip"),
    *("fiberpo_crossed", "fiberpo_domain", "fiberpo_experts", "fiberpo_modal", "fiberpo_turns"),
}
WEIGHED = {"fiberpo_tis": "fiberpo", "fiberpo_domain_tis": "fiberpo_domain"}


def test_every_shipped_loss_is_ours_or_has_its_sources_formula():
    assert sorted(shipped()) == sorted({*SOURCES, *OURS, *WEIGHED})
    assert not OURS & {*SOURCES, *WEIGHED}


@pytest.mark.parametrize("name", SOURCES)
def test_a_loss_equals_its_published_formula(name):
    assert agreement(name, "torch", SEEDS if ALL else SEEDS[:2]) < BOUND


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(SOURCES, 6))
def test_the_c_backend_equals_the_published_formulas(name):
    assert agreement(name, "c", SEEDS[:1]) < BOUND


@pytest.mark.sampled
@pytest.mark.parametrize("name", SOURCES)
def test_batches_take_every_branch_of_the_formula(name):
    taken = []
    for seed in SEEDS:
        b = rows(name, seed)
        taken.append(published(name, b, parameters(name, b))[2])
        assert float((b.at - b.old)[b.mask].abs().min()) > 0, "a token on policy"
    for branch in zip(*taken, strict=True):
        together = np.concatenate(branch)
        assert together.any() and not together.all()


@pytest.mark.sampled
@pytest.mark.parametrize("name", SOURCES)
def test_the_gradient_of_a_formula_equals_finite_differences(name):
    """Of one function: what the source holds stays, and only the rest moves."""
    b = rows(name, 0)
    given = parameters(name, b)
    _, slope, _ = published(name, b, given)
    step = 1e-6
    places = torch.nonzero(b.mask)[:: 1 if ALL else 3]
    for i, t in places.tolist():
        ends = []
        for sign in (1, -1):
            moved = b.log_prob.clone()
            moved[i, t] += sign * step
            ends.append(float(SOURCES[name](replace(b, log_prob=moved), given)[0]))
        token = int(b.mask[:i].sum()) + t
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope[token], rel=1e-5, abs=1e-7 * np.abs(slope).max())


@pytest.mark.parametrize(("name", "base"), WEIGHED.items())
def test_a_weight_of_tokens_equals_a_factor_of_advantages(name, base):
    """Where no gate reads the advantage."""
    b = rows(name, 1)
    given = {"ceiling": 1.2}
    weight = torch.clamp((b.old - b.rollout).exp(), max=1.2)
    assert (weight < 1.2)[b.mask].any() and (weight == 1.2)[b.mask].any()
    by_hand = Rows(b.log_prob, b.at, b.old, b.rollout, weight * b.advantages, b.mask)
    _, objective, values = compiled(spec(name), "torch", b, given, packed)
    _, expected, slope = compiled(spec(base), "torch", by_hand, {}, packed)
    assert objective == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(values, slope, rtol=1e-12, atol=1e-16)
