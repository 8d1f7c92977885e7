"""Losses whose names differ: parameters matched by role, names matched by the user, defaults, given advantages."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hierarchies.loss_pairs import DIFFERENT, dapo, grpo, ppo, token, truly_ppo

from fibration import (
    Gate,
    Objective,
    Parameter,
    ParameterError,
    SpecError,
    advantage,
    clip,
    equivalent,
    exp,
    load,
    log_prob,
    maximum,
    minimum,
    pessimistic_clip_gate,
    policies,
    residual,
    token_mean,
    where,
)
from fibration.language.loading import shipped
from fibration.language.pairs import pair
from fibration.language.roles import contradict, match_names, match_parameters, renamed

SHIPPED = [n for n in shipped() if load(n).parameters]


def by_hand(name, low, high):
    """PPO's clip as people write it."""
    gate = where(advantage >= 0, minimum(residual, high), maximum(residual, -low))
    return dapo.replace(name=name, gates={token: Gate(gate)})


def status(first, second, **given):
    return equivalent(first, second, **given).verdicts[0].status


@pytest.mark.sampled
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_loss_with_names_of_its_own_is_the_same_loss(name):
    """Names that say nothing, in an order that says nothing. By name alone none of them can be compared."""
    h = load(name)
    names = {p: f"p{k}" for k, p in enumerate(reversed(list(h.parameters)))}
    ours = renamed(h, names).replace(name="ours")
    with pytest.raises(SpecError, match="use different parameters"):
        pair(h, ours)
    (verdict,) = equivalent(h, ours).verdicts
    assert verdict.status == "proved"
    said = dict(re.findall(r"(\w+) ↔ (\w+)", verdict.subject))
    assert said.keys() == names.keys()


@pytest.mark.sampled
@pytest.mark.parametrize("name", shipped())
def test_tokens_and_rows_may_have_other_names(name):
    h = load(name)
    names = {"trajectory": "response"} | ({"token": "tok"} if len(h.leaves) == 1 else {})
    assert status(h, renamed(h, names).replace(name="ours")) == "proved"


@pytest.mark.parametrize("names", [("eps_lo", "eps_hi"), ("clipLow", "clipHigh"), ("below", "above"), ("x", "y")])
def test_bounds_written_by_hand_are_matched(names):
    low, high = (Parameter(n, default=0.2, upper=u) for n, u in zip(names, (1, None), strict=True))
    report = equivalent(by_hand("ours", low, high), dapo)
    assert report.ok
    assert all(f"{a} ↔ {b}" in report.outcome for a, b in zip(names, ("epsilon_low", "epsilon_high"), strict=True))


def test_one_bound_each_is_matched_whatever_its_name():
    def one(name):
        return dapo.replace(name=name, gates={token: Gate(clip(residual, -Parameter(name), Parameter(name)))})

    assert equivalent(one("clip_range"), one("delta")).ok


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in SHIPPED if {"epsilon_low", "epsilon_high"} <= load(n).parameters.keys()])
def test_low_and_high_exchanged_is_another_loss(name):
    """Bounds that say low and high are never matched crosswise, although the losses would then be the same."""
    h = load(name)
    ours = renamed(h, {"epsilon_low": "eps_hi", "epsilon_high": "eps_lo"}).replace(name="ours")
    (verdict,) = equivalent(h, ours).verdicts
    assert verdict.status == ("undecided" if name == "pass_at_k" else "refuted")  # its advantages need many rows
    assert "epsilon_low ↔ eps_lo" in verdict.subject and "epsilon_high ↔ eps_hi" in verdict.subject


def test_low_and_high_of_one_name_are_not_exchanged():
    swapped = renamed(dapo, {"epsilon_low": "epsilon_high", "epsilon_high": "epsilon_low"})
    assert status(dapo, swapped) == "refuted"
    half = renamed(dapo, {"epsilon_low": "epsilon_high", "epsilon_high": "eps"})
    assert status(dapo, half) == "refuted"


def test_bounds_matched_by_their_place_keep_their_defaults_in_the_report():
    """`a` stands where `epsilon_low` does, and has the default of `epsilon_high`."""
    ours = by_hand("ours", Parameter("a", default=0.28, upper=1), Parameter("b", default=0.2))
    (verdict,) = equivalent(dapo, ours).verdicts
    assert verdict.status == "proved"
    assert "epsilon_low is 0.2 in 'dapo' and 0.28 in 'ours'" in verdict.argument
    assert status(dapo, ours, at_defaults=True) == "refuted"


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in DIFFERENT if "swapped" not in n])  # which are names alone
def test_different_losses_stay_different_under_other_names(name):
    p = DIFFERENT[name]
    if p.parameters or p.when:
        pytest.skip("its conditions name parameters")
    ours = renamed(p.second, {n: f"p{k}" for k, n in enumerate(p.second.parameters)}).replace(name="ours")
    with suppress(SpecError):  # a match that is not unique
        assert status(p.first, ours) != "proved"


def test_parameters_that_no_role_matches_are_tried():
    """Two bounds without a side in their names, in a gate that is written differently."""
    ours = by_hand("ours", Parameter("a", default=0.2, upper=1), Parameter("b", default=0.3, upper=1))
    other = ours.replace(name="other", gates={token: pessimistic_clip_gate(*_two("c", "d"))})
    (verdict,) = equivalent(ours, other).verdicts
    assert verdict.status == "proved" and "a ↔ c" in verdict.subject and "b ↔ d" in verdict.subject


def _two(*names):
    return [Parameter(n, default=0.2, upper=1) for n in names]


def test_a_match_that_is_not_unique_is_asked_for():
    with pytest.raises(SpecError) as caught:
        equivalent(truly_ppo, ppo)
    said = str(caught.value)
    assert "epsilon, alpha only in 'truly_ppo'; epsilon_high, epsilon_low, ceiling only in 'ppo'" in said
    assert "matches are possible" in said and "--match epsilon=epsilon_high" in said
    assert status(truly_ppo, ppo, match={"epsilon": "epsilon_high", "alpha": "ceiling"}) == "refuted"


def test_a_match_that_no_trial_makes_equal_is_asked_for():
    """The two losses differ in μ, so that every match of their bounds leaves them different."""
    with pytest.raises(SpecError, match="matches are possible, and none of them could be shown"):
        equivalent(truly_ppo, ppo.replace(name="sums", objective=Objective(1)))


def test_names_are_matched_as_the_user_says():
    current, reference, teacher = policies("current reference teacher")

    def anchored(name, policy):
        k2 = (log_prob(current) - log_prob(policy)) ** 2 / 2
        return grpo.replace(name=name, penalties={"kl": k2})

    first, second = anchored("first", reference), anchored("second", teacher)
    assert status(first, second) == "refuted"  # two policies are two policies
    found = equivalent(first, second, match={"reference": "teacher"})
    assert found.ok and "with reference ↔ teacher" in found.outcome
    assert equivalent(second, first, match={"reference": "teacher"}).ok
    with pytest.raises(ParameterError, match="'reference' and 'epsilon_low' cannot be matched"):
        equivalent(first, second, match={"reference": "epsilon_low"})
    with pytest.raises(SpecError, match="has another 'reference'"):
        both = second.replace(penalties={**second.penalties, "other": (log_prob(current) - log_prob(reference)) ** 4})
        equivalent(first, both, match={"reference": "teacher"})


def test_policies_and_groups_known_by_several_names_are_matched():
    for name, names in (("grpo_k2", {"reference": "ref", "prompt_group": "group"}), ("tis", {"rollout": "engine"})):
        h = load(name)
        found = equivalent(h, renamed(h, names).replace(name="ours"))
        assert found.ok
        assert all(f"{a} ↔ {b}" in found.outcome for a, b in names.items())
    reference_of_two = load("grpo_k2").replace(
        name="two", objective=token_mean().weigh(exp(log_prob(policies("ref")[0])))
    )
    assert match_names(reference_of_two, load("grpo_k2")) == {}


def test_at_their_defaults_losses_are_compared_as_they_train():
    assert status(ppo, dapo.replace(name="wide"), at_defaults=True) == "refuted"
    narrow = dapo.replace(name="narrow", gates={token: pessimistic_clip_gate(0.2, 0.28)})
    found = equivalent(dapo, narrow, at_defaults=True)
    assert found.ok and "with all parameters at their defaults" in found.outcome
    assert status(dapo, narrow) == "refuted"
    assert status(dapo, narrow, at_defaults=True, parameters={"epsilon_low": 0.3}) == "refuted"
    none = dapo.replace(gates={token: pessimistic_clip_gate(Parameter("open", upper=1), 0.28)})
    with pytest.raises(ParameterError, match="'open' of 'dapo' has no default"):
        equivalent(none, narrow, at_defaults=True)
    fiberpo = load("fiberpo")
    assert equivalent(fiberpo, fiberpo.replace(name="ours"), at_defaults=True).ok


def test_a_default_per_channel_is_a_number_on_each_channel():
    h = load("fiberpo")
    (row,) = [s for s in h.gates if s.name == "trajectory"]
    other = Parameter("C_trajectory", per_channel=True, default={"+": 0.1, "-": 0.2})
    turned = h.replace(name="turned", gates={**h.gates, row: load("fiberpo").gates[row].model_copy()})
    assert equivalent(h, turned, at_defaults=True).ok
    from fibration import aggregate_gate, count

    wrong = h.replace(name="wrong", gates={**h.gates, row: aggregate_gate(other, rollback=count(token))})
    assert status(h, wrong, at_defaults=True) == "refuted"
    assert status(h, wrong) == "proved"


def test_advantages_may_be_left_out_of_the_comparison():
    pairs = (("grpo_rewards", "grpo"), ("dapo_rewards", "dapo"), ("grpo_rewards", "hierarchical_grpo"))
    for first, second in pairs[:2]:
        found = equivalent(load(first), load(second), ignore_advantages=True)
        assert found.ok and "with advantages given to both" in found.outcome
    assert status(*map(load, pairs[2]), ignore_advantages=True) == "refuted"


def test_words_of_names_contradict():
    for a, b in (("epsilon_low", "eps_hi"), ("min_ratio", "upper"), ("tau_neg", "tauPos"), ("floor", "ceiling")):
        assert contradict(a, b) and contradict(b, a)
    for a, b in (("epsilon_low", "eps_lo"), ("low", "epsilon"), ("c_high", "max"), ("a", "b"), ("low_high", "high")):
        assert not contradict(a, b)


def test_parameters_of_other_kinds_are_not_matched():
    fiberpo = load("fiberpo")
    one = dapo.replace(gates={token: Gate(clip(residual, -Parameter("c", upper=1), 1))})
    assert match_parameters(one, fiberpo, ["c"], ["C_trajectory"]) == {}
    apart = dapo.replace(gates={token: Gate(clip(residual, -1, Parameter("c", lower=2)))})
    assert match_parameters(one, apart, ["c"], ["c"]) == {}
