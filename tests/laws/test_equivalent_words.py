"""Whether two losses of several policies, weights, conditions and statistics of tokens are the same."""

from __future__ import annotations

import pytest

from fibration import (
    Gate,
    Parameter,
    count,
    density,
    equivalent,
    exp,
    identity_gate,
    load,
    log_prob,
    mean,
    minimum,
    policies,
    residual,
    same,
    stop,
    strata,
    token_mean,
    zero_gate,
)
from fibration.language.pairs import pair
from fibration.laws.proof.same_loss import same_loss
from fibration.laws.witness.differences import difference

token, trajectory = strata("token trajectory")
current, old, rollout = policies("current old rollout")
dapo = load("dapo")
rho = exp(log_prob(old) - log_prob(rollout))
k1 = mean(log_prob(old) - log_prob(rollout), over=trajectory)
C, u = Parameter("C", default=2.0), Parameter("u", default=2.0, lower=1)
low = Parameter("low", default=0.5, upper=1)


def objective(made, name="ours"):
    return dapo.replace(name=name, objective=made)


def verdict(first, second, *when, **given):
    (found,) = equivalent(objective(first), objective(second, "yours"), when, **given).verdicts
    return found


DIFFERENT = {
    "truncated, and not": (token_mean().weigh(minimum(rho, C)), token_mean().weigh(rho)),
    "a weight, and none": (token_mean().weigh(rho), token_mean()),
    "kept at the bound itself": (token_mean().keep(rho <= u), token_mean().keep(rho < u)),
    "kept at the bound itself, in nats": (
        token_mean().keep(log_prob(old) - log_prob(rollout) <= u),
        token_mean().keep(log_prob(old) - log_prob(rollout) < u),
    ),
    "kept at the bound of a mean": (token_mean().keep(k1 <= u), token_mean().keep(k1 < u)),
    "normalised by all, and by what is kept": (
        token_mean().keep(rho <= u),
        token_mean().keep(rho <= u, normaliser="kept"),
    ),
    "kept between 1/u and 1/l, and between l and u": (
        token_mean().keep((1 / u <= rho) & (rho <= 1 / low)),
        token_mean().keep((low <= rho) & (rho <= u)),
    ),
    "a policy of another name": (token_mean().weigh(rho), token_mean().weigh(exp(log_prob(old) - log_prob(current)))),
    "a bound on a probability": (
        token_mean().keep(exp(log_prob(old)) < low),
        token_mean().keep(exp(log_prob(old)) <= low),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_found_on_one_trajectory(name):
    found = verdict(*DIFFERENT[name])
    assert found.status == "refuted"
    values = found.counterexample.values
    place = values["tokens"].index(values["token"])
    assert values["coefficients"][place] != values["other_coefficients"][place]
    assert len(values["tokens"]) <= 2
    said = values.get("probabilities", values.get("log_probs"))
    assert set(said) <= {"old", "rollout"} and all(len(v) == len(values["tokens"]) for v in said.values())


def test_a_batch_meets_conditions_on_policies():
    """Kept below 2 and below 3 is one where ratios stay below 2, and where they are 1; log-probs are never above 0."""
    first, second = token_mean().keep(rho < 2), token_mean().keep(rho < 3)
    assert verdict(first, second).status == "refuted"
    for when in (rho < 2, same(old, rollout), "same(rollout, old)", "on_policy"):
        assert difference(pair(objective(first), objective(second), when), {1: 60, 2: 40}) is None


def test_what_is_stopped_has_no_slope():
    """In value both are the ratio of the trajectory; a token's own log ratio moves one of them alone, by all of it."""
    mean_ratio = load("gspo").replace(name="of_means", gates={trajectory: identity_gate(), token: zero_gate()})
    held = stop(density(trajectory)) + count(token, over=trajectory) * residual + density(trajectory)
    own = Gate(
        (held - stop(count(token, over=trajectory) * residual + density(trajectory))) / count(token, over=trajectory)
    )
    of_tokens = mean_ratio.replace(name="own", gates={trajectory: zero_gate(), token: own})
    assert not same_loss(pair(mean_ratio, of_tokens)).proved
    assert equivalent(mean_ratio, of_tokens, "advantage=trajectory").ok
    (found,) = equivalent(mean_ratio, of_tokens).verdicts
    assert found.status == "refuted" and len(found.counterexample.values["tokens"]) == 2
