"""Blocks of the Jacobian against brute force: a token of another block changes nothing."""

from __future__ import annotations

import random

import pytest
from fuzz.batches import Batches
from fuzz.judges.level_facts import wrong_blocks
from hierarchies.builders import chain, domain, epsilon, prompt_group, token, trajectory
from hierarchies.first_order_specs import deep_tree, group, quiver, tree
from hierarchies.quivers import image, modality, text
from oracles.certified_facts import facts_of
from support import spec

from fibration import Gate, clip_gate, density, residual, tanh, uniform
from fibration.language.atoms import mass

LEVELS = uniform(), uniform()
CLIP = clip_gate(epsilon).per(mass)


def reading(*strata):
    """A gate that reads densities."""
    return Gate(residual / (1 + sum(density(s) ** 2 for s in strata)))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("h", "over"),
    [
        (spec("fiberpo"), trajectory),
        (spec("fiberpo_domain"), domain),
        (spec("gspo"), trajectory),
        (spec("ppo"), token),
        (chain(*LEVELS), token),
        (chain(*LEVELS, gates={token: Gate(residual / (1 + residual**2))}), trajectory),
        (chain(*LEVELS, gates={trajectory: Gate(tanh(residual))}), prompt_group),
        (chain(*LEVELS, gates={prompt_group: Gate(tanh(residual))}), prompt_group),
        (chain(*LEVELS, gates={token: reading(prompt_group)}), prompt_group),
        (chain(*LEVELS, gates={token: reading(trajectory)}), trajectory),
        (chain(*LEVELS, uniform(), gates={token: Gate(tanh(residual))}), trajectory),
        (tree(), None),
        (tree({image: CLIP}), trajectory),
        (deep_tree({text: CLIP}), "turn"),
        (deep_tree({text: CLIP, image: CLIP}), trajectory),
        (deep_tree({group: CLIP}), "group"),
        (quiver(), token),
        (quiver({token: CLIP}), trajectory),
        (quiver({trajectory: CLIP}), "batch"),
        (quiver({token: reading(domain)}), domain),
        (quiver({token: reading(domain, modality)}), "batch"),
    ],
)
def test_the_jacobian_is_0_across_blocks(h, over):
    """What is certified, and that a token of another block changes nothing."""
    (fact,) = facts_of(h, "blocks")
    assert fact.subject == "Jacobian of 𝒢"
    assert fact.value == (f"block-diagonal over {over}" if over else "diagonal")
    draw = Batches(h, random.Random(7), 8)
    assert not any(wrong_blocks(h, fact, draw) for _ in range(8))
