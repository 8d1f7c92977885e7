"""The radius where strata cross: means of crossing strata add to a residual and subtract from it."""

import pytest
import torch
from hierarchies.edges import N, crossed, index, trajectory
from support import operator

from fibration import clip_gate, log_ratio, signed_log_ratio

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
    radius = next(float(f.value) for f in h.verify().facts if f.name == "radius")
    assert radius == pytest.approx(BUDGET / times, rel=1e-15)
    where, signs = batch(h)
    for size, passes in ((radius * (1 - 1e-9), True), (radius * 1.2, False)):
        x = size * signs
        change = float((operator(h).gate(x, where).log() - x).abs().max())
        assert (change < 1e-14) == passes
