"""Whether two losses with penalties, advantages from rewards and order are the same, against differences of J."""

from __future__ import annotations

import pytest
from fuzz.judges.pairs import shows, told_apart
from hierarchies.loss_pairs_with_penalties import DIFFERENT, SAME, beta, k2, k3, less, trajectory

from fibration import deviation, equivalent, identity_gate, load
from fibration.language.pairs import pair
from fibration.laws.equivalent.same_loss import same_loss
from fibration.laws.law import Proved, Unknown


@pytest.mark.parametrize("name", SAME)
def test_equal_losses_are_proved_the_same(name):
    p = SAME[name]
    (found,) = equivalent(p.first, p.second, p.when).verdicts
    assert found.status == "proved"
    assert not told_apart(p)


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_losses_are_refuted_by_a_batch(name):
    """The batch has at most three tokens. Its coefficients equal those of the definition. No pair is proved."""
    p = DIFFERENT[name]
    (found,) = equivalent(p.first, p.second, p.when).verdicts
    assert found.status == "refuted"
    assert len(found.counterexample.values["tokens"]) <= 3
    shows(found.counterexample, p)
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
    p = DIFFERENT["leave one out, and not"]
    text = " ".join(str(equivalent(p.first, p.second)).split())
    assert "rewards 1, -1, of which the first makes the advantages 2, -2 and the second 1, -1" in text
    assert "on a prompt_group of 2 trajectories" in text
    given = equivalent(p.first, p.second).to_dict()["verdicts"][0]["counterexample"]["values"]
    assert (given["rewards"], given["advantages"], given["other_advantages"]) == (["1", "-1"], ["2", "-2"], ["1", "-1"])
    p = SAME["leave one out"]
    both = (h.replace(penalties={"kl": k}) for h, k in ((p.first, k2), (p.second, k3)))
    assert ", of which both make the advantages" in " ".join(str(equivalent(*both)).split())
