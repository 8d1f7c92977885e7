"""The evaluator of the fuzz returns the coefficients of the compiled operator, for every shipped loss."""

import random

import numpy as np
import pytest
from support import spec

from fibration import FibrationError, Gate, absolute, residual
from fibration.language.loading import shipped
from fuzz.batches import Batches
from fuzz.dual_numbers import Illegal, NoValue, Unclear, value_of
from fuzz.generate import SETTINGS, Formulas, x
from fuzz.operators import coefficients
from fuzz.world import World


@pytest.mark.sampled
@pytest.mark.parametrize("name", shipped())
def test_coefficients_are_those_of_the_operator(name):
    h, rng = spec(name), random.Random(name)
    if h.orthogonalise:
        pytest.skip("effects by least squares are not evaluated")
    compared = 0
    for batch in Batches(h, rng, most=6).several(12):
        try:
            expected = [float(value_of(c)) for c in World(h, batch).coefficients]
        except (NoValue, Illegal, Unclear):
            continue
        found = coefficients(h, batch)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        compared += 1
    assert compared >= 4


@pytest.mark.thorough
def test_coefficients_of_random_hierarchies_are_those_of_the_operator():
    compared = 0
    for seed in range(40):
        rng = random.Random(seed)
        f = Formulas(rng.choice(SETTINGS), rng)
        held = Formulas(f.setting, rng, moving=False)

        def make(f=f, held=held):
            objective = f.objective().weigh(f.number(2)).keep(f.condition(2), f.pick("all", "kept"))
            gates = {f.setting.leaves[0]: Gate(residual * (1 + absolute(held.number(1))))}
            return f.hierarchy(
                objective=objective, gates=gates, penalties={"p": x * f.number(1)}, decomposition=f.split()
            )

        try:
            h = make()
        except FibrationError:
            continue
        for batch in Batches(h, rng, most=8).several(2):
            try:
                world = World(h, batch)
                expected = [float(value_of(c)) for c in world.coefficients]
                assert all(value_of(r) is not None for r in world.ratios)
                found = coefficients(h, batch)
            except (NoValue, Illegal, Unclear, FibrationError, TypeError):  # of constants, torch has no functions
                continue
            np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9, err_msg=str(seed))
            compared += 1
    assert compared > 20
