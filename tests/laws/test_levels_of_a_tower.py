"""What a level of a residual tower does to coefficients: numbers of the operator, as pages state them."""

import itertools

import numpy as np
import pytest
from hierarchies.builders import prompt_group, token, trajectory
from oracles.certified_facts import facts_of
from support import Batch, operator, packed
from support import coefficients as computed

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    clip_gate,
    count,
    identity_gate,
    log_ratio,
    proportional,
    trajectory_mean,
    uniform,
)
from fibration.language.atoms import mass

M = count(trajectory)
KERNELS = {token: uniform(), trajectory: uniform(), prompt_group: proportional(M)}


def tower(levels, gated):
    """Clips at the budgets of `gated`, in nats of mean log ratio, that act if they stop an outward pull."""
    budgets = {s: Parameter(f"C_{s}", default=gated[s]) for s in gated}
    return Hierarchy(
        name="tower",
        fibrations=[Fibration(a, b, kernel=KERNELS[a]) for a, b in itertools.pairwise(levels)],
        gates={s: clip_gate(budgets[s]).per(mass).inward() if s in gated else identity_gate() for s in levels},
        decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(),
    )


def coefficients(h, batch):
    op = operator(h)
    return computed(op, packed(op, batch), batch)[0] * len(batch.lengths)


def eight_answers():
    """One right answer of eight, standardised, which has drifted by 0.15; the wrong ones have not."""
    rewards = np.array([1.0] + 7 * [0.0])
    advantages = (rewards - rewards.mean()) / rewards.std(ddof=1)
    return Batch((1,) * 8, np.array([0.15] + 7 * [0.0]), advantages, {"prompt_group": [0] * 8})


def test_a_stopped_answer_pushes_its_siblings():
    """The right answer keeps 0.33 of 2.88, and each wrong one falls from -0.354 to -0.022."""
    levels, batch = (token, trajectory, prompt_group), eight_answers()
    free = coefficients(tower(levels, {}), batch)
    assert free == pytest.approx([2.88] + 7 * [-0.354], abs=0.005)
    stopped = coefficients(tower(levels, {trajectory: 0.05}), batch)
    assert stopped == pytest.approx([0.33] + 7 * [-0.022], abs=0.003)
    # what the fact says: the siblings get 1 - 1/8 of what the gate stops, the pull of the gated answer
    (said,) = [f.value for f in facts_of(tower(levels, {trajectory: 0.05}), "spill")]
    assert said == "1 - 1/count(trajectory, over=prompt_group)"
    pull = 8 * stopped[0]
    assert stopped[1:] - free[1:] == pytest.approx(7 * [pull * (1 - 1 / 8) / 7], rel=1e-12)


def test_without_a_level_below_nothing_is_handed_on():
    batch = eight_answers()
    stopped = coefficients(tower((token, trajectory), {trajectory: 0.05}), batch)
    assert stopped == pytest.approx([0.0] + 7 * [-0.354], abs=0.001)
    assert not facts_of(tower((token, trajectory), {trajectory: 0.05}), "spill")
