"""Whether two losses are the same: pairs of both kinds, each against brute force in rationals."""

from __future__ import annotations

import functools

import pytest
from hierarchies.pairs import DIFFERENT, SAME
from oracles import losses

from fibration import equivalent


@functools.cache
def verdict(name: str):
    p = {**SAME, **DIFFERENT}[name]
    (found,) = equivalent(p.first, p.second, p.when, parameters=p.parameters).verdicts
    return found


@pytest.mark.parametrize("name", SAME)
def test_losses_that_are_the_same(name):
    assert verdict(name).status == "proved"
    assert losses.differs(SAME[name], 4) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_losses_that_are_not(name):
    found, p = verdict(name), DIFFERENT[name]
    assert found.status == "refuted"
    witness = found.counterexample
    batch = losses.batch_of(witness, p)
    values = witness.values
    for k, (h, key) in enumerate(((p.first, "coefficients"), (p.second, "other_coefficients"))):
        assert losses.agrees_with(h, values[key], batch, k)
    place = values["tokens"].index(values["token"])
    assert values["coefficients"][place] != values["other_coefficients"][place]
