"""The weights of an objective have a value at every token: also on trees, and without a gate on rows.

Chains are in `wrong_specs.wrong_objectives`.
"""

import functools
import operator

import pytest
from hierarchies.builders import T
from hierarchies.quivers import BOTH, batch, image, make, text, token, trajectory, turn
from oracles import verdicts

from fibration import (
    Hierarchy,
    Objective,
    Parameter,
    Penalty,
    absolute,
    clip,
    count,
    exp,
    identity_gate,
    largest,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    policies,
    reward,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from fibration.language.outline import whole_batch
from fibration.language.strata import populated
from fibration.laws import LAWS
from fibration.laws.subject import Subject


def of(objective, *more, **assumed):
    """The verdict on an objective of a tree of texts and images."""
    return decided(make((text, trajectory, BOTH), (image, trajectory, BOTH), *more, objective=objective, **assumed))


def decided(hierarchy):
    (verdict,) = LAWS["objective"].decide(Subject(hierarchy, []))
    return verdict


def of_all(objective):
    """The verdicts on μ and on further weights, of one stratum of tokens."""
    return list(LAWS["objective"].decide(Subject(of_tokens(objective), [])))


def of_tokens(objective):
    return Hierarchy(name="one", gates={token: identity_gate()}, decomposition=log_ratio(), objective=objective)


BRANCH = Objective(1 / count(text, over=trajectory))


@pytest.mark.parametrize("objective", [trajectory_mean(), token_mean(), trajectory_mean().score()])
def test_means_over_all_branches_have_a_value_if_one_branch_is_empty(objective):
    assert of(objective).status == "proved"


@pytest.mark.parametrize("is_inverse", [True, False])
def test_weights_that_are_cut_off_by_division_are_not_negative(is_inverse):
    """A distance above the bound is above 0, however the bound is written."""
    old, rollout = policies("old rollout")
    d, bound = log_prob(old) - log_prob(rollout), Parameter("bound", default=2)
    for distance in (d, absolute(d), exp(d), exp(d) - 1 - d):
        weight = 1 / maximum(1, distance / bound) if is_inverse else bound / maximum(bound, distance)
        found = of_all(token_mean().weigh(weight))
        assert [v.status for v in found] == ["proved", "proved"], found
    assert of_all(token_mean().weigh(1 / minimum(bound, d)))[1].status == "refuted"


def test_a_product_of_many_clipped_ratios_is_decided_factor_by_factor():
    """Eight ratios of three branches each have a product of 6561 branches, more than are split."""
    old, *others = policies("old " + " ".join(f"p{i}" for i in range(8)))
    bound, d = Parameter("bound", default=2, lower=1), log_prob(old) - log_prob(others[0])
    ratios = [clip(exp(log_prob(old) - log_prob(p)), 1 / bound, bound) for p in others]
    right = functools.reduce(operator.mul, ratios)
    for made in (token_mean().weigh(right), token_mean().weigh(right).keep(d < 1)):
        h = of_tokens(made)
        found = {v.law: v.status for v in h.verify().verdicts if v.subject == f"weight {right}"}
        assert found == dict.fromkeys(("objective", "agreement", "causal"), "proved")
    for factor, law in ((d, "objective"), (1 / d, "objective"), (ratios[0] + 1, "agreement")):
        wrong = functools.reduce(operator.mul, [*ratios[:2], factor])
        found = of_tokens(token_mean().weigh(wrong)).verify().verdicts
        assert next(v.status for v in found if (v.law, v.subject) == (law, f"weight {wrong}")) == "refuted"
    both = of_all(token_mean().weigh(d * d))  # no factor is known to be at least 0, and their product is
    assert [v.status for v in both] == ["proved", "proved"]


def test_a_count_of_a_branch_is_at_least_1_at_its_own_tokens_alone():
    """At an image there may be no text. At a text there is one."""
    verdict = of(BRANCH)
    assert verdict.status == "refuted"
    assert (
        str(verdict.counterexample) == "an image_token has no weight in a trajectory of 0 text_tokens and 1 image_token"
    )
    assert verdict.remedy.startswith("count(text_token, over=trajectory) is 0 where that branch is empty")
    assert "assume=[populated(text_token, over=trajectory)]" in verdict.remedy
    assert of(BRANCH, assume=[populated(text, over=trajectory)]).status == "proved"
    assert of(Objective(1 / (1 + count(text, over=trajectory)))).status == "proved"
    assert (
        of(Objective(where(count(text, over=trajectory) > 0, 1 / count(text, over=trajectory), 0))).status == "proved"
    )


def test_the_assumption_populated_over_the_batch_is_refused():
    """The batch is no stratum of the hierarchy."""
    verdict = of(Objective(1 / count(text, over=batch)))
    assert str(verdict.counterexample) == "an image_token has no weight in a batch of 0 text_tokens and 1 image_token"
    assert "populated" not in verdict.remedy
    assert "sum of counts" in verdict.remedy


def test_rows_and_the_batch_need_no_gate():
    alone = Hierarchy(
        name="one", gates={token: identity_gate()}, decomposition=log_ratio(), objective=trajectory_mean()
    )
    assert [f.name for f in whole_batch(alone).fibrations] == ["token → trajectory", "trajectory → batch"]
    assert decided(alone).status == "proved"
    assert str(decided(alone.replace(objective=Objective(1 / (T - 1)))).counterexample).endswith(
        "trajectory of 1 token"
    )
    beside = make((token, turn), objective=trajectory_mean())
    names = [f.name for f in whole_batch(beside).fibrations]
    assert names == ["token → turn", "token → trajectory", "turn → batch", "trajectory → batch"]
    assert decided(beside).status == "proved"
    assert decided(beside.replace(objective=Objective(1 / (T - 1)))).status == "refuted"


def test_a_count_that_names_no_place_is_read_at_the_row():
    """The operator counts one trajectory over a trajectory, and all of its tokens."""
    assert decided(make((token, trajectory), objective=Objective(1 / (count(trajectory) - 3)))).status == "proved"
    verdict = decided(make((token, trajectory), objective=Objective(1 / (count(token) - 3))))
    assert str(verdict.counterexample).endswith("trajectory of 3 tokens")


def test_a_pole_beyond_every_size_that_is_tried_is_refused():
    verdict = decided(make((token, trajectory), objective=Objective(1 / (T - 10**9))))
    assert verdict.status == "undecided"
    assert verdict.counterexample is None
    assert "could not be shown to have a value at every token" in verdict.found


@pytest.mark.sampled
@verdicts.wrong_specs("objective")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


def test_a_mean_of_a_branch_that_may_be_empty_needs_a_condition():
    """A total needs none. A mean is accepted if a condition on the count comes first."""
    x, number = log_prob(policies("current")[0]), count(image, over=trajectory)
    size = mean(x * x, over=trajectory, of=image)

    def found(**changes):
        h = make((text, trajectory, BOTH), (image, trajectory, BOTH), objective=token_mean()).replace(**changes)
        return list(LAWS["objective"].decide(Subject(h, [])))[-1]

    for wrong, read in (
        (dict(objective=token_mean().weigh(size)), "weight"),
        (dict(objective=token_mean().weigh(1 + mean(size, over=batch))), "weight"),
        (dict(advantages=reward - mean(reward, over=trajectory, of=image)), "advantage"),
        (dict(penalties={"far": Penalty(largest(x * x, of=image) * mean(x), over=trajectory)}), "penalty"),
    ):
        verdict = found(**wrong)
        assert verdict.status == "refuted"
        assert verdict.remedy.startswith("count(image_token, over=trajectory) is 0 where that branch is empty")
        assert f"0 image_tokens, the {read} of the token has no value" in str(verdict.counterexample)
        assert found(**wrong, assume=[populated(image, over=trajectory)]).status == "proved"
    for right in (
        total(x * x, over=trajectory, of=image),
        where(number > 0, size, 1),
        mean(x * x, over=trajectory),
        mean(mean(x * x), over=batch, of=trajectory),
    ):
        assert found(objective=token_mean().weigh(right)).status == "proved"
