"""Blocks of the Jacobian against numbers: across them it is 0, within them it is not."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fuzz.batches import Batches
from fuzz.judges.level_facts import wrong_blocks
from hierarchies.builders import chain, domain, epsilon, prompt_group, token, trajectory
from hierarchies.first_order_specs import deep_tree, group, quiver, tree
from hierarchies.quivers import image, modality, text
from oracles.certified_facts import facts, forest, report
from oracles.interpreter import Interpreter

from fibration import (
    Gate,
    clip_gate,
    density,
    load,
    residual,
    tanh,
    uniform,
)
from fibration.language.atoms import mass

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


@pytest.mark.sampled
@pytest.mark.parametrize("name", BLOCKS)
def test_the_jacobian_is_0_across_blocks_and_not_within_them(name):
    """Entries across the certified blocks are exactly 0; within some block, and not only on the diagonal, one is not."""
    h = BLOCKS[name]
    stratum = next(s for s in h.order if facts(h, "blocks")["Jacobian of 𝒢"] == f"block-diagonal over {s}")
    world = forest(h, tuple(2 for _ in h.order[1:]), roots=2)
    n, size = Interpreter(world), world.size(token)
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


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("h", "value"),
    [
        (tree(), "diagonal"),
        (tree({image: clip_gate(epsilon).per(mass)}), "block-diagonal over trajectory"),
        (deep_tree({text: clip_gate(epsilon).per(mass)}), "block-diagonal over turn"),
        (deep_tree({text: clip_gate(epsilon).per(mass), image: clip_gate(epsilon).per(mass)}), "block-diagonal over trajectory"),
        (deep_tree({group: clip_gate(epsilon).per(mass)}), "block-diagonal over group"),
        (quiver(), "block-diagonal over token"),
        (quiver({token: clip_gate(epsilon).per(mass)}), "block-diagonal over trajectory"),
        (quiver({trajectory: clip_gate(epsilon).per(mass)}), "block-diagonal over batch"),
        (quiver({token: Gate(residual / (1 + density(domain) ** 2))}), "block-diagonal over domain"),
        (quiver({token: Gate(residual / (1 + density(domain) ** 2 + density(modality) ** 2))}), "block-diagonal over batch"),
    ],
)  # fmt: skip
def test_on_trees_and_quivers_the_jacobian_is_0_across_blocks(h, value):
    """What is certified, and that a token of another block changes nothing."""
    assert facts(h, "blocks") == {"Jacobian of 𝒢": value}
    (fact,) = (f for f in report(h).facts if f.name == "blocks")
    draw = Batches(h, random.Random(7), 8)
    assert not any(wrong_blocks(h, fact, draw) for _ in range(8))
