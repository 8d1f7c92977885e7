"""Laws that hold for a reason that single terms do not show are proved, and their neighbours are not."""

import random
from fractions import Fraction

import pytest
from hierarchies.reasons import BROKEN, KEPT
from oracles import brute, verdicts
from oracles.certified import report


@pytest.mark.parametrize("name", KEPT)
def test_they_verify_and_hold_on_small_hierarchies(name):
    found = report(KEPT[name])
    assert found.ok, found
    assert brute.uphold(KEPT[name], found.verdicts, brute.worlds_for(KEPT[name], (1, 2, 3))) > 3


@pytest.mark.parametrize("name", BROKEN)
def test_their_neighbours_are_not_proved(name):
    h, law = BROKEN[name]
    found = report(h)
    assert all(v.status != "proved" for v in found.verdicts if v.law == law), found
    verdicts.counterexamples_hold(h, found)


@pytest.mark.parametrize("name", [n for n, h in KEPT.items() if len(h.order) > 1])
def test_far_ratios_are_positive_too(name):
    """Tokens and their trajectories far above 1 and far below it, in every combination."""
    rng = random.Random(name)
    for world in brute.worlds_for(KEPT[name], (2, 3, 4)):
        for _ in range(4):
            xs = [Fraction(rng.choice([-30, -3, -1, 0, 1, 3, 30])) for _ in range(world.size(KEPT[name].leaves[0]))]
            assert all(r > 0 for r in world.ratios(xs, [Fraction(rng.choice([-1, 1]))] * len(xs)))
