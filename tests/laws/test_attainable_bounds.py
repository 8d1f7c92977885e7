"""Bounds of attributes that a batch can attain, and signs that are assumed twice."""

import pytest
from hierarchies.weights_and_masks import mu, old, one, rollout
from oracles.certified_facts import decided

from fibration import (
    Attribute,
    Parameter,
    Stratum,
    atan,
    count,
    exp,
    largest,
    log_prob,
    mean,
    reward,
    tanh,
    total,
    where,
)
from fibration.language.strata import Shape
from fibration.language.sympy_bridge import symbol
from fibration.laws.signs.assumptions import Assumptions

token, trajectory, group = Stratum("token"), Stratum("trajectory"), Stratum("prompt_group")
u = Attribute("u", on=trajectory, positive=False, upper=1)
w = Attribute("w", on=trajectory, positive=False, lower=-1)
g = Attribute("g", on=group, positive=False, upper=1)
vt = Attribute("vt", on=token)
lp = log_prob(old)
S, K = total(w, over=group), count(trajectory, over=group)


def weighed(formula):
    return one(mu.weigh(formula), groups=[group])


WRONG = {
    "objective": {
        "an upper bound": weighed(where(u > 0, 1 / (1 - u), 1)),
        "a lower bound": weighed(where(w < 0, 1 / (1 + w), 1)),
        "a bound of a total": weighed(where(S < 0, 1 / (S + K), 1)),
        "a sign asked twice": weighed(where(tanh(lp) < 0, tanh(lp) + 0.5, 1)),
        "a sign asked twice, divided": weighed(where(tanh(lp) < 0, 1 / (tanh(lp) + 0.5), 1)),
    },
    "agreement": {
        "an upper bound": weighed(where(u > 0, where(u < 1, 1, 2), 1)),
        "a sign asked twice": weighed(where(atan(lp) < 0, where(atan(lp) > -0.5, 1, 2), 1)),
    },
    "mask_open": {
        "an upper bound": one(mu.keep((u <= 0) | (u < 1))),
        "a sign asked twice": one(mu.keep((atan(lp) >= 0) | (atan(lp) > -0.5))),
    },
    "baseline": {
        "an upper bound": one(mu, groups=[group], advantages=reward * where(g > 0, 1 - g, 1)),
        "a mean over the token": one(mu, advantages=reward * mean(vt, over=token)),
        "what is largest over the token": one(mu, advantages=reward * largest(vt, over=token)),
        "a total over the token": one(mu, advantages=reward * total(exp(vt), over=token)),
    },
}
RIGHT = {
    "objective": [
        weighed(where(u > 0, 1 / (1.5 - u), 1)),
        weighed(where(w < 0, 1 / (1.5 + w), 1)),
        weighed(where(tanh(lp) < 0, tanh(lp) + 1.5, 1)),
    ],
    "agreement": [weighed(where(u > 0, where(u <= 1, 1, 2), exp(lp - log_prob(rollout))))],
    "baseline": [one(mu, groups=[group], advantages=reward * where(g > 0, 2 - g, 1))],
}


@pytest.mark.sampled
@pytest.mark.parametrize(("law", "name"), [(law, name) for law, cases in WRONG.items() for name in cases])
def test_a_fault_at_an_attainable_bound_is_not_ruled_out(law, name):
    verdicts = decided(WRONG[law][name], law)
    assert any(v.status != "proved" for v in verdicts)


@pytest.mark.parametrize("law", RIGHT)
def test_a_fault_at_an_unattainable_bound_is_ruled_out(law):
    for h in RIGHT[law]:
        assert all(v.status == "proved" for v in decided(h, law))


def test_assuming_a_sign_twice_keeps_the_other_bound():
    p = Parameter("p", lower=-1, upper=1)
    known = Assumptions(Shape((token,), ()))
    x = symbol(p)
    below = known.with_signs({x: frozenset({-1, 0})}).with_signs({x: frozenset({-1})})
    assert below.signs(x + 1) == {1}
    assert below.signs(2 * x + 1) == {-1, 0, 1}
