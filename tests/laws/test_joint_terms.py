"""Laws that hold only for several terms together are proved, and similar wrong hierarchies are not."""

import itertools
import random
from fractions import Fraction

import pytest
from hierarchies.builders import epsilon
from hierarchies.joint_terms import BROKEN, DEVIATIONS, KEPT, LEFT, TREES
from oracles import brute_force, verdicts
from oracles.certified_facts import TINY, report
from thorough import some

from fibration import residual
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.shapes import small


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(KEPT, 2))
def test_right_hierarchies_verify(name):
    found = report(KEPT[name])
    assert found.ok, found


@pytest.mark.sampled
@pytest.mark.parametrize("name", TREES)
def test_right_trees_verify_and_pass_small_residuals(name):
    h = TREES[name]
    found = report(h)
    assert found.ok, found
    [s] = [s for s in h.order if h.gate(s) != residual]
    tried = 0
    for concrete in (Concrete(h.shape, maps) for n in (1, 2, 3) for maps in small(h.shape, n, ())):
        for element, step in itertools.product(range(concrete.size[s]), (Fraction(0), TINY, -TINY)):
            values = {residual: step, epsilon: Fraction(1, 100)}
            assert concrete.value(h.gate(s), s, element, values) == step
            tried += 1
    assert tried > 20


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEFT)
def test_hierarchies_beyond_the_proofs_are_undecided(name):
    found = report(LEFT[name])
    assert not found.ok
    assert all(v.status != "refuted" for v in found.verdicts), found


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(BROKEN, 2))
def test_wrong_hierarchies_that_differ_in_one_number_are_not_proved(name):
    h, law = BROKEN[name]
    found = report(h)
    assert any(v.status != "proved" for v in found.verdicts if v.law == law), found
    verdicts.counterexamples_hold(h, found)


@pytest.mark.sampled
@pytest.mark.parametrize("name", DEVIATIONS)
def test_gated_ratios_far_from_1_are_positive(name):
    """Tokens and their trajectories lie far above 1 and far below it, in every combination."""
    rng = random.Random(name)
    for world in brute_force.worlds_for(KEPT[name], (2, 3, 4)):
        for _ in range(4):
            xs = [Fraction(rng.choice([-30, -3, -1, 0, 1, 3, 30])) for _ in range(world.size(KEPT[name].leaves[0]))]
            assert all(r > 0 for r in world.ratios(xs, [Fraction(rng.choice([-1, 1]))] * len(xs)))
