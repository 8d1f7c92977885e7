"""Mistakes in functions are named by the property that they break; right functions in unusual words are not accused."""

import pytest
from oracles.loss_functions import MISTAKES, RIGHT, per_token

from fibration import audit
from fibration.auditing import properties
from fibration.auditing.function import Function

SMALL = 4  # tokens of a batch that shows a mistake


@pytest.mark.sampled
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_by_the_property_that_it_breaks(name):
    m = MISTAKES[name]
    found = audit(m.function, m.like, parameters=m.parameters)
    if name == "nan_times_zero":  # trainers pad with finite numbers, so that NaN under the mask is a note
        assert next(f.text for f in found.findings if f.name == "mask").startswith("a ratio that overflows")
        return
    assert not found.ok
    named = {f.name for f in found.failures} | {own.name for own, _ in found.differences}
    assert m.breaks in named, str(found)
    if not found.identified:
        assert found.losses[0].batch.tokens <= SMALL
    assert all(f.batch.tokens <= SMALL for f in found.failures if f.batch and f.name not in ("rows", "sign"))


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_function_is_identified_and_not_accused(name):
    function, like = RIGHT[name]
    found = audit(function, like)
    assert found.ok and found.identified, str(found)


# Without a loss to compare with, a mistake may be another loss; or it is none.
CALLED = {
    "mean_of_means": "grpo",
    "mean_of_all_tokens": "dapo",
    "low_and_high_exchanged": "dapo",
    "no_dual_clip": "dapo",
    **dict.fromkeys(
        ("one_token_too_many", "max_for_min", "dropped_minus", "scaled_by_accumulation", "squared_ratio"), ""
    ),
    **dict.fromkeys(("root_of_the_length", "clipped_alone", "sequence_ratios_of_tokens", "advantage_squared"), ""),
    **dict.fromkeys(("own_reward_in_the_baseline", "spread_of_the_batch", "k1_as_a_loss"), ""),
    "sum_over_rows": "dr_grpo",
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CALLED)
def test_a_mistake_is_called_no_shipped_loss_but_one_that_it_is(name):
    found = audit(MISTAKES[name].function)
    assert (found.losses[0].name if found.identified else "") == CALLED[name], str(found)
    assert found.identified or found.losses[0].batch is not None


# Without a loss beside the function, no difference names the mistake: the property alone has to.
ALONE = {
    "max_for_min": (properties.sides, "max for min"),
    "mask_shifted_by_one": (properties.mask, "a masked place gets a gradient"),
    "one_token_too_many": (properties.normaliser, "no mean or sum of tokens or rows"),
    "max_for_min_with_a_reference": (properties.sides, "max for min"),
    "dropped_minus": (properties.sign, "against its advantage"),
    "mean_over_masked_places": (properties.padding, "three more masked places"),
    "a_weight_that_sees_later_tokens": (properties.causal, "later tokens of its row"),
    "power_of_a_huge_ratio": (properties.finite, "far off policy"),
    "an_attached_weight": (properties.engine, "the weight by rollout_log_probs carries a gradient"),
    "an_attached_weight_without_bound": (properties.engine, "the weight by rollout_log_probs carries a gradient"),
    "an_attached_weight_of_log_probs": (properties.engine, "the weight by rollout_log_probs carries a gradient"),
    "k3_exchanged_of_rewards": (properties.reference, "k3 with the policy and the reference exchanged"),
    "k3_exchanged": (properties.reference, "k3 with the policy and the reference exchanged"),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_property_finds_its_mistake_without_a_loss_to_compare_with(name):
    ask, said = ALONE[name]
    found = ask(Function(MISTAKES[name].function, name))
    assert found.status == ("note" if name.startswith("a_weight") else "fails") and said in found.text
    assert found.batch is not None and found.batch.tokens <= SMALL


def test_what_lies_under_the_mask_is_part_of_its_batch():
    def wrong(log_probs, old_log_probs, advantages, mask):
        values = (per_token(log_probs, old_log_probs, advantages) * mask).sum() / mask.sum()
        return values * (1 + 0.1 * log_probs.detach().sum())

    found = properties.mask(Function(wrong, "wrong"))
    assert found.status == "fails" and found.batch.padding.value == -0.7


def test_there_are_many():
    assert len(MISTAKES) >= 60 and len(RIGHT) >= 40
