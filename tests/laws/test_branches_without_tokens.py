"""Totals, conditions and means of a branch without tokens.

In a tree an element may have no tokens of a branch. What is wrong there is not proved; what asks for the branch first,
or assumes that it is populated, is.
"""

import pytest
from hierarchies.quivers import batch, image, make, text, trajectory
from oracles.certified_facts import decided, facts_of

from fibration import (
    Attribute,
    Gate,
    Penalty,
    after,
    before,
    count,
    deviation,
    exp,
    largest,
    log,
    log_prob,
    maximum,
    mean,
    position,
    residual,
    reward,
    some,
    sqrt,
    token_log_ratio,
    token_mean,
    total,
    where,
)
from fibration.language.declared import policies
from fibration.language.expressions import as_expression
from fibration.language.strata import populated

old, current, rollout = policies("old current rollout")
JOINT = 1 / (count(text, over=trajectory) + count(image, over=trajectory))
EDGES = ((text, trajectory, JOINT), (image, trajectory, JOINT))
FULL = [populated(image, over=trajectory)]
N = count(image, over=trajectory)
PER_IMAGE = {"over": trajectory, "of": image}
IMAGES = total(count(image, over=image), **PER_IMAGE)  # N, as a statistic
ONE = as_expression(1)
RHO = exp(log_prob(old) - log_prob(rollout))
LEAST = -largest(-N, over=batch)  # the fewest images of a row


def tree(gate=None, **more):
    gates = {} if gate is None else {text: Gate(gate)}
    return make(*EDGES, gates=gates, rows=trajectory, **more)


def weighed(w, **more):
    return tree(objective=token_mean().weigh(w), **more)


def kept(condition, normaliser="all", **more):
    return tree(objective=token_mean().keep(condition, normaliser=normaliser), **more)


def status(h, law, subject=None):
    found = [v.status for v in decided(h, law) if subject in (None, v.subject)]
    return next((s for s in ("refuted", "undecided") if s in found), "proved" if found else "none")


# ---------------------------------------------------------------- objective

WITHOUT_VALUE = {
    "1/total": 1 / IMAGES,
    "1/total of probabilities": 1 / total(exp(log_prob(old)), **PER_IMAGE),
    "a share": total(ONE, **PER_IMAGE) / total(2 * ONE, **PER_IMAGE),
    "a logarithm": maximum(log(total(3 * ONE, **PER_IMAGE)), 0),
    "a condition that divides": where(1 / IMAGES > 1, 1, 2),
    "the least over rows": 1 / LEAST,
    "the sum of two minima": 1 / (LEAST - largest(-count(text, over=trajectory), over=batch)),
    "a total of rows without images": 1 / total(where(N > 0, 1, 0), over=batch, of=trajectory),
    "a nested one": 1 / total(total(ONE, **PER_IMAGE), over=batch, of=trajectory),
    "a mean of such": 1 / mean(total(ONE, **PER_IMAGE), over=batch),
    "an order": 1 / after(N, over=batch),
    "a square root": sqrt(LEAST - 1),
    "a mean inside": where(mean(mean(log_prob(old), over=trajectory, of=None), **PER_IMAGE) < 0, 1, 2),
}  # fmt: skip
WITH_VALUE = {
    "asked for": where(N > 0, 1 / IMAGES, 1),
    "asked for by the total": where(IMAGES > 0, 1 / IMAGES, 1),
    "beside the other branch": 1 / (IMAGES + total(ONE, over=trajectory, of=text) + 1),
    "of all tokens": 1 / total(ONE, over=trajectory),
    "of all rows": 1 / total(ONE, over=batch, of=trajectory),
    "read at images": total(1 / N, **PER_IMAGE),
    "read at images, of images": total(1 / IMAGES, **PER_IMAGE),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", WITHOUT_VALUE)
def test_a_weight_without_a_value_on_an_empty_branch_is_refuted(name):
    assert status(weighed(WITHOUT_VALUE[name]), "objective") == "refuted"


@pytest.mark.sampled
@pytest.mark.parametrize("name", WITH_VALUE)
def test_a_weight_with_a_value_on_an_empty_branch_is_proved(name):
    assert status(weighed(WITH_VALUE[name]), "objective") == "proved"


@pytest.mark.parametrize("name", ["1/total", "1/total of probabilities", "a share", "the least over rows"])
def test_the_assumption_populated_proves_the_weight(name):
    assert status(weighed(WITHOUT_VALUE[name], assume=FULL), "objective") == "proved"


def test_a_search_evaluates_formulas_of_a_branch_only_at_tokens_of_the_branch():
    """The first token of a batch without texts is an image. A formula of texts is not read there."""
    at_text = Attribute("at_text", text, positive=False, lower=0)
    most = largest(-at_text, over=trajectory, of=text)
    for h in (
        tree(advantages=where(reward > 0, most, reward)),
        weighed(where(log_prob(current) <= -2, largest(count(text, over=text), over=trajectory, of=text), 1)),
    ):
        assert not any(v.internal_error for v in h.verify().verdicts)
        assert status(h, "objective") == "refuted"


def test_penalties_conditions_and_advantages_need_a_value_on_an_empty_branch():
    assert status(kept(1 / IMAGES > 1 / 2), "objective") == "refuted"
    assert status(tree(penalties={"p": token_log_ratio / IMAGES}), "objective") == "refuted"
    by_row = {"p": Penalty(mean(token_log_ratio, over=trajectory) / IMAGES, over=trajectory)}
    assert status(tree(penalties=by_row), "objective") == "refuted"


# ---------------------------------------------------------------- agreement, masks, gates

CLOSED = {
    "some of a branch": some(N > 0, **PER_IMAGE),
    "some of what is near": some(token_log_ratio < 1, **PER_IMAGE),
    "a total": IMAGES > 0,
    "a total of probabilities": total(exp(log_prob(old)), **PER_IMAGE) > 0,
    "the least over rows": LEAST > 0,
    "some of one": some(count(image, over=image) > 0, **PER_IMAGE),
    "some, twice": some(some(N > 0, **PER_IMAGE), over=batch),
    "all but none": ~some(~some(N > 0, **PER_IMAGE), over=batch),
    "an order": after(1, over=batch) > 0,
    "what came before": before(RHO, over=trajectory) > 0,
}  # fmt: skip
OPEN = {
    "all of a branch": ~some(N < 1, **PER_IMAGE),
    "where it is": some(N > 0, **PER_IMAGE) | (N < 1),
    "of all tokens": some(count(text, over=trajectory) + N > 0, over=batch),
    "a total": IMAGES >= 0,
    "of rows": some(count(text, over=trajectory) + N > 0, over=batch, of=trajectory),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("normaliser", ["all", "kept"])
@pytest.mark.parametrize("name", CLOSED)
def test_a_condition_that_fails_on_an_empty_branch_is_refuted(name, normaliser):
    assert status(kept(CLOSED[name], normaliser), "mask_open") == "refuted"
    assert status(weighed(where(CLOSED[name], 1, 2)), "agreement") == "refuted"


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPEN)
def test_a_condition_that_holds_on_an_empty_branch_is_proved(name):
    assert status(kept(OPEN[name]), "mask_open") == "proved"
    assert status(weighed(where(OPEN[name], 1, 2)), "agreement") == "proved"


def test_the_assumption_populated_proves_the_condition():
    for name in ("some of a branch", "a total", "the least over rows", "some, twice"):
        assert status(kept(CLOSED[name], assume=FULL), "mask_open") == "proved", name


GATES = {
    "the least over rows": LEAST > 0,
    "two minima": LEAST - largest(-count(text, over=trajectory), over=batch) > 0,
    "some": some(log_prob(old) <= 0, **PER_IMAGE),
    "a total": IMAGES > 0,
    "a total of log-probs": total(1 - log_prob(old), **PER_IMAGE) > 0,
}


@pytest.mark.sampled
@pytest.mark.parametrize("law", ["identity", "first_order", "gradient"])
@pytest.mark.parametrize("name", GATES)
def test_a_gate_that_reads_an_empty_branch_needs_the_assumption_populated(name, law):
    assert status(tree(where(GATES[name], residual, 2 * residual)), law) in ("refuted", "undecided")
    assert status(tree(where(GATES[name], residual, 2 * residual), assume=FULL), law) == "proved"


# ---------------------------------------------------------------- second moment


def moment(objective, **more):
    return facts_of(tree(objective=objective, **more), "second_moment")[0].value


@pytest.mark.thorough
def test_bounds_of_weights_include_empty_branches():
    assert moment(token_mean().weigh(where(IMAGES > 0, 1, 2))).startswith("w is at most 2")
    assert moment(token_mean().weigh(where(IMAGES > 0, 1, 2)), assume=FULL).startswith("w is at most 1")
    far = log_prob(old) - log_prob(rollout)
    of_images = token_mean().weigh(RHO).keep(~some(far > 1, **PER_IMAGE))
    assert "no bound" in moment(of_images)
    assert "exp(1)" in moment(token_mean().weigh(RHO).keep(~some(far > 1, over=trajectory)))
    by_row = (
        token_mean()
        .weigh(count(text, over=trajectory))
        .keep(~some(count(text, over=trajectory) > 3, over=batch, of=trajectory))
    )
    assert moment(by_row).startswith("w is at most 3")


LACKING = {
    "a logarithm inside": where(mean(log(token_log_ratio), over=trajectory) > 2, 1, 1),
    "a division inside an order": where(before(1 / position(over=trajectory), over=trajectory) > 2, 1, 1),
    "a deviation of such": where(deviation(1 / position(over=trajectory), over=trajectory) >= 0, 1, 2),
    "some of such": where(some(1 / position(over=trajectory) > 2, over=trajectory), 1, 1),
    "a mean of none inside": where(largest(mean(ONE, **PER_IMAGE), over=batch) > 0, 1, 1),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LACKING)
def test_a_formula_inside_a_statistic_needs_a_value(name):
    assert status(weighed(LACKING[name]), "agreement") in ("refuted", "undecided")
    assert status(kept(LACKING[name] > 0), "mask_open") in ("refuted", "undecided")
    assert status(tree(LACKING[name] * residual), "identity") in ("refuted", "undecided")


def test_a_gated_ratio_needs_a_value_of_each_statistic_in_its_gate():
    for inner, found in ((log(1 - token_log_ratio), "refuted"), (1 / position(over=trajectory), "refuted")):
        h = tree(where(mean(inner, over=trajectory) > 0, residual, residual / 2))
        assert status(h, "positivity") == found
    assert (
        status(tree(where(mean(1 / (1 + position(over=trajectory)), over=trajectory) > 0, residual, 0)), "positivity")
        == "proved"
    )
