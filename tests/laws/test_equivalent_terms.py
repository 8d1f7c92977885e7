"""Whether two losses with several policies, weights, conditions, statistics, penalties and order are the same.

Each pair is against brute force: coefficients, and differences of J.
"""

from __future__ import annotations

import pytest
from fuzz.judges.pairs import shows, told_apart
from hierarchies import loss_pairs_with_penalties as penalties
from hierarchies import loss_pairs_with_weights as weights
from hierarchies.loss_pairs import EACH, image, modal, of_tokens, text
from hierarchies.loss_pairs_with_penalties import beta, k2, k3, less
from hierarchies.loss_pairs_with_weights import (
    TM,
    C,
    current,
    dapo,
    held,
    means,
    old,
    rho,
    rollout,
    trajectory,
    with_objective,
)
from thorough import some

from fibration import (
    Gate,
    count,
    deviation,
    equivalent,
    identity_gate,
    load,
    log_prob,
    log_ratio,
    mean,
    minimum,
    residual,
    same,
    token_log_ratio,
    total,
    where,
)
from fibration.language.pairs import pair
from fibration.laws.equivalent.same_loss import same_loss
from fibration.laws.equivalent.search import difference
from fibration.laws.law import Proved, Unknown


def verdict(p):
    (found,) = equivalent(p.first, p.second, p.when, parameters=p.parameters).verdicts
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*some(weights.SAME, 2), *penalties.SAME])
def test_equal_losses_are_proved_the_same(name):
    p = {**weights.SAME, **penalties.SAME}[name]
    assert verdict(p).status == "proved"
    assert not told_apart(p)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*weights.DIFFERENT, *penalties.DIFFERENT])
def test_different_losses_are_refuted_by_a_batch(name):
    """The batch has at most three tokens. Its coefficients equal those of the definition. No pair is proved."""
    p = {**weights.DIFFERENT, **penalties.DIFFERENT}[name]
    found = verdict(p)
    assert found.status == "refuted"
    assert len(found.counterexample.values["tokens"]) <= 3
    shows(found.counterexample, p)
    if name in penalties.DIFFERENT:
        assert isinstance(same_loss(pair(p.first, p.second, p.when)), Unknown)


def test_a_deviation_of_equal_values_on_several_leaves_is_0():
    modal = load("fiberpo_modal")
    one, other, plain = (
        modal.replace(gates=dict.fromkeys(modal.gates, identity_gate()), objective=modal.objective.weigh(w))
        for w in (1 + deviation(beta, over=trajectory), 1 + beta, 1 + 0 * beta)
    )
    assert isinstance(same_loss(pair(one, plain)), Proved)
    assert isinstance(same_loss(pair(one, other)), Unknown)


@pytest.mark.parametrize(
    ("first", "second"),
    [("grpo_rewards", "dr_grpo_rewards"), ("rloo", "opo"), ("reinforce_pp", "reinforce_pp_baseline")],
)
def test_advantages_that_differ_are_shown_where_nothing_is_clipped(first, second):
    """All ratios are 1, and the coefficients differ in print too."""
    (found,) = equivalent(load(first), load(second)).verdicts
    assert found.status == "refuted" and "with ratios 1, 1" in found.counterexample.text
    values = found.counterexample.values
    place = values["tokens"].index(values["token"])
    assert len({f"{float(values[key][place]):.5g}" for key in ("coefficients", "other_coefficients")}) == 2


def test_a_counterexample_has_the_log_probs_and_rewards_of_both_losses():
    """It has log-probs of every policy, and rewards if advantages come from rewards."""
    text = str(equivalent(less(k2), less(k3)))
    assert "under old" in text and "under reference" in text
    p = penalties.DIFFERENT["leave one out, and not"]
    text = " ".join(str(equivalent(p.first, p.second)).split())
    assert "rewards 1, -1, of which the first makes the advantages 2, -2 and the second 1, -1" in text
    assert "on a prompt_group of 2 trajectories" in text
    given = equivalent(p.first, p.second).to_dict()["verdicts"][0]["counterexample"]["values"]
    assert (given["rewards"], given["advantages"], given["other_advantages"]) == (["1", "-1"], ["2", "-2"], ["1", "-1"])
    p = penalties.SAME["leave one out"]
    both = (h.replace(penalties={"kl": k}) for h, k in ((p.first, k2), (p.second, k3)))
    assert ", of which both make the advantages" in " ".join(str(equivalent(*both)).split())


@pytest.mark.thorough
def test_a_mean_on_a_tree_is_the_total_divided_by_the_tokens_of_all_leaves():
    n, share = count(text, over=trajectory) + count(image, over=trajectory), total(rho, over=trajectory)

    def by(weight):
        return modal(EACH).replace(objective=TM.weigh(weight))

    found = [
        equivalent(by(1 / mean(rho, over=trajectory)), by(other / share)).verdicts[0].status
        for other in (n, count(text, over=trajectory), n + 1)
    ]
    assert found == ["proved", "refuted", "refuted"]


def test_the_batch_of_a_counterexample_meets_conditions_on_policies():
    """Kept below 2 and kept below 3 are the same where ratios stay below 2. Log-probs are never above 0."""
    first, second = (with_objective(TM.keep(rho < n)) for n in (2, 3))
    assert not equivalent(first, second).ok
    for when in (rho < 2, same(old, rollout), "same(rollout, old)", "on_policy"):
        assert difference(pair(first, second, when), {1: 60, 2: 40}) is None
        assert equivalent(first, second, when).ok


def test_a_policy_equal_to_the_current_one_has_no_gradient():
    """If rollout equals current, a weight by their ratio is 1. A weight by rollout over old stays fixed."""
    by_old = with_objective(TM.weigh(rho))
    assert equivalent(by_old, with_objective(TM.weigh(1 / (rho * 0 + 1))), same(old, rollout)).ok
    assert not equivalent(by_old, dapo, same(current, rollout)).ok


def trajectories(gate):
    return means.replace(name="ours", gates={**means.gates, trajectory: Gate(gate)})


def tokens(gate):
    return of_tokens(gate, log_ratio(), name="ours")


@pytest.mark.parametrize(
    ("first", "second", "when"),
    [
        (means, held, ()),
        (means, trajectories(mean(token_log_ratio, over=trajectory)), ()),
        (tokens(residual), tokens(log_prob(rollout) - log_prob(old)), same(current, rollout)),
    ],
)
def test_formulas_equal_in_value_with_different_slopes_differ(first, second, when):
    """A stopped formula, a statistic, and the log-prob of a frozen policy have no slope."""
    assert isinstance(same_loss(pair(first, second, when)), Unknown)
    assert difference(pair(first, second, when), {1: 20, 2: 40}) is not None


@pytest.mark.parametrize("name", ["a mean, and what is largest", "a median, and another quantile"])
def test_statistics_of_different_kinds_are_never_matched(name):
    p = weights.DIFFERENT[name]
    assert isinstance(same_loss(pair(p.first, p.second)), Unknown)


def test_gates_that_compare_residuals_with_log_probs_are_decided():
    """DCPO's bounds are wider for less probable tokens."""
    assert not equivalent(load("dcpo"), load("reinforce")).ok


def test_a_breakpoint_at_a_ratio_near_0_is_tried():
    """One gate changes at a log ratio of -40, beside another that acts on ratios."""
    far = of_tokens(where(residual < -40, -40, residual), log_ratio())
    assert difference(pair(far, of_tokens(where(residual < -0.5, -0.5, residual))), {1: 20}) is not None


def test_a_counterexample_contains_the_probabilities_under_each_policy():
    report = equivalent(with_objective(TM.weigh(minimum(rho, C))), with_objective(TM.weigh(rho), "yours"))
    assert "probabilities 1/2 under old, probabilities 1/3 under rollout" in str(report)
    told = report.to_dict()["verdicts"][0]["counterexample"]["values"]
    assert (told["probabilities of old"], told["probabilities of rollout"]) == (["1/2"], ["1/3"])
