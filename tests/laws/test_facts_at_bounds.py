"""Facts at the ends of their ranges: open intervals, a root with sign channels, unbounded weights."""

import pytest

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    Penalty,
    clip,
    exp,
    log_prob,
    log_ratio,
    minimum,
    policies,
    residual,
    signed_log_ratio,
    strata,
    token_log_ratio,
    token_mean,
    where,
)

(token,) = strata("token")
old, rollout = policies("old rollout")
C = Parameter("C", default=2, lower=1)
rho = exp(log_prob(old) - log_prob(rollout))
FIFTH = 0.2


def fact(name, gate, split=None, objective=None, **more):
    h = Hierarchy(
        name="one",
        gates={token: Gate(gate)},
        decomposition=split or log_ratio(),
        objective=objective or token_mean(),
        **more,
    )
    (found,) = [f for f in h.verify().facts if f.name == name]
    return found


@pytest.mark.parametrize("gate", [clip(residual, -3, FIFTH), minimum(residual, FIFTH)])
def test_the_facts_of_a_split_root_ignore_its_gate_below_0(gate):
    """No channel has a residual below 0 there, so the upper bound gives the largest coefficient."""
    assert fact("amplification", gate, signed_log_ratio()).value == "exp(0.2)"


@pytest.mark.parametrize(("is_passed", "within"), [(residual < 2, "below"), (residual <= 2, "at most")])
def test_a_radius_says_whether_the_gate_passes_its_end(is_passed, within):
    found = fact("radius", where(is_passed, residual, 0))
    assert found.value == "2"
    assert f"every |log r| is {within} this" in found.argument


def test_amplification_leaves_penalties_out_and_says_so():
    off = {"kl": Penalty(token_log_ratio**2 / 2)}
    assert "beside what penalties add" in fact("amplification", clip(residual, -1, 1), penalties=off).argument
    assert "penalties" not in fact("amplification", clip(residual, -1, 1)).argument


def test_an_unbounded_weight_makes_the_product_unbounded():
    found = fact("amplification", clip(residual, -1, 1), objective=token_mean().weigh(minimum(rho, C)).weigh(rho))
    assert found.value == "exp(1); times w"
