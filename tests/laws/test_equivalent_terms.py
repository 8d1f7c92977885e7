"""Whether two losses with penalties, advantages from rewards and order are the same: each pair against differences of J."""

from __future__ import annotations

import pytest
from hierarchies.terms import DIFFERENT, SAME
from oracles import terms

from fibration import equivalent
from fibration.language.pairs import pair
from fibration.laws.proof.same_loss import same_loss


@pytest.mark.parametrize("name", SAME)
def test_losses_that_are_the_same(name):
    p = SAME[name]
    (found,) = equivalent(p.first, p.second, p.when).verdicts
    assert found.status == "proved"
    batch = terms.drawn(p, 1)
    assert not terms.differ(*(terms.Loss(h, batch).coefficients() for h in (p.first, p.second)))


@pytest.mark.parametrize("name", DIFFERENT)
def test_losses_that_are_not(name):
    """On three tokens at most, with coefficients that differences of J have too; and none of them is proved."""
    p = DIFFERENT[name]
    (found,) = equivalent(p.first, p.second, p.when).verdicts
    assert found.status == "refuted"
    values, batch = found.counterexample.values, terms.of_witness(found.counterexample)
    assert len(values["tokens"]) <= 3
    for h, key in ((p.first, "coefficients"), (p.second, "other_coefficients")):
        assert not terms.differ(terms.Loss(h, batch).coefficients(), values[key])
    place = values["tokens"].index(values["token"])
    assert values["coefficients"][place] != values["other_coefficients"][place]
    assert not same_loss(pair(p.first, p.second, p.when)).proved
