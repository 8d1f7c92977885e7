"""Attributes from a trainer's data: the fields that have them, and what an index is given."""

import pytest
import support
import torch

from fibration import (
    Attribute,
    Hierarchy,
    TrainerError,
    count,
    identity_gate,
    ratio_deviation,
    strata,
    token_mean,
)
from fibration.trainers.intake import (
    as_number,
    attribute_sources,
    check_policies,
    indexed,
    numbers_of_rows,
    numbers_of_tokens,
)

token, trajectory, domain, batch = strata("token trajectory domain batch")
surprise = Attribute("surprise", on=token, positive=False)
difficulty, share = Attribute("difficulty", on=trajectory), Attribute("share", on=domain)
OF_TOKENS, OF_ROWS = {"surprise": "entropies"}, {"greedy_reward": "baselines"}


def reading(*attributes, **more):
    weight = 1 + count(trajectory, over=domain)
    for one in attributes:
        weight = weight + one * one
    gates, objective = {token: identity_gate()}, token_mean().weigh(weight)
    return Hierarchy(
        name="reading", gates=gates, decomposition=ratio_deviation(), objective=objective, groups=[domain], **more
    )


H = reading(surprise, difficulty, share)
GIVEN = {"difficulty": "level", "share": "part"}


def test_sources_are_the_users_or_those_that_the_trainer_knows():
    assert attribute_sources(H, GIVEN, OF_TOKENS, OF_ROWS) == {**GIVEN, "surprise": "entropies"}
    assert attribute_sources(H, {**GIVEN, "surprise": "own"}, OF_TOKENS)["surprise"] == "own"
    assert attribute_sources(support.spec("remax"), None, None, OF_ROWS) == OF_ROWS
    assert attribute_sources(support.spec("grpo"), None, OF_TOKENS, OF_ROWS) == {}


@pytest.mark.parametrize(
    ("h", "given", "says", "remedy"),
    [
        (
            H,
            {"difficulty": "level"},
            "no numbers for the attribute 'share' of a domain",
            "attributes={'share': COLUMN}",
        ),
        (H, {**GIVEN, "dificulty": "x"}, "numbers for 'dificulty', which 'reading' does not read", "did you mean"),
        (support.spec("grpo"), {"x": "y"}, "does not read", "leave 'x' out of attributes"),
        (H, ["level"], "attributes are", "attributes={"),
        (reading(Attribute("size", on=batch)), None, "the attribute 'size' of the batch", "Parameter('size'"),
        # a number per token is no number per row
        (reading(Attribute("surprise", on=trajectory)), None, "attribute 'surprise' of a trajectory", "COLUMN"),
    ],
)
def test_sources_that_lack_or_that_nothing_reads_are_errors(h, given, says, remedy):
    with pytest.raises(TrainerError, match=says) as caught:
        attribute_sources(h, given, OF_TOKENS)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("value", [None, "3", float("nan"), float("inf"), [1.0, 2.0], torch.ones(2), {}])
def test_what_is_no_finite_number_is_none(value):
    assert as_number(value) is None


@pytest.mark.parametrize("value", [2, 2.0, torch.tensor(2), torch.tensor([2.0])])
def test_a_value_becomes_a_number(value):
    assert as_number(value) == 2.0


def test_a_row_without_a_number_is_named_unless_it_is_masked():
    found = numbers_of_rows(difficulty, [1, None, 3.0], [0, 2], "the column 'level'", "drop it")
    assert found.dtype == torch.float64 and found[[0, 2]].tolist() == [1.0, 3.0] and found[1].isnan()
    with pytest.raises(TrainerError) as caught:
        numbers_of_rows(difficulty, [1, float("nan"), 3.0], [0, 1], "the column 'level'", "drop it")
    assert str(caught.value).startswith(
        "row 1 has nan in the column 'level', the source of the attribute 'difficulty' of a trajectory"
    )
    assert caught.value.remedy == "drop it" and "for every row" in caught.value.required


def test_a_token_without_a_number_is_named_unless_it_is_masked():
    values = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    mask = torch.tensor([[True, False], [True, True]])
    assert numbers_of_tokens(surprise, values, mask, "the field", "")[1].tolist() == [2.0, 3.0]
    with pytest.raises(TrainerError, match="token 1 of row 0 has nan in the field") as caught:
        numbers_of_tokens(surprise, values, torch.ones(2, 2), "the field", "")
    assert "for every unmasked token" in caught.value.required


def test_an_index_takes_tokens_rows_and_labels():
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1]]).bool()
    labels = {"domain": ["math", "code", "math", "math"]}
    numbers = {
        "surprise": torch.rand(4, 2, dtype=torch.float64) + 1,
        "difficulty": torch.tensor([1.0, 2.0, torch.nan, 3.0], dtype=torch.float64),
        "share": torch.tensor([0.5, 0.7, torch.nan, 0.5], dtype=torch.float64),
    }
    given = indexed(H, numbers, labels, mask)
    assert given["share"] == {"math": 0.5, "code": 0.7}
    index = support.operator(H).index(mask=mask, attributes=given, **labels)
    assert index.values["difficulty"].tolist() == [1.0, 2.0, 3.0]
    assert torch.equal(index.values["surprise"], numbers["surprise"][mask])
    numbers["share"][3] = 0.6
    with pytest.raises(TrainerError) as caught:
        indexed(H, numbers, labels, mask)
    assert str(caught.value).startswith("rows 0 and 3 of domain 'math' have 0.5 and 0.6 for its attribute 'share'")
    assert "Attribute('share', on=trajectory)" in caught.value.remedy


# ---------------------------------------------------------------- policies

KNOWN = {"rollout": "what sampled", "reference": "a frozen model"}


def test_a_policy_of_the_user_is_taken():
    check_policies(support.spec("opd"), KNOWN, {"teacher": "field"})


@pytest.mark.parametrize(
    ("h", "given", "says", "remedy"),
    [
        ("opd", None, "reads log_prob\\(teacher\\), and the trainer has no log-probs", "policies={'teacher': MODEL}"),
        ("grpo", {"judge": 1}, "policy 'judge', which 'grpo' does not read", "leave 'judge' out of policies"),
        ("opd", {"teacher": 1, "teach": 1}, "policy 'teach', which 'opd' does not read", "did you mean 'teacher'?"),
        ("grpo_k2", {"reference": 1}, "policy 'reference', which the trainer has: a frozen model", "second_reference"),
        ("opd", "teacher", "policies are 'teacher'", "policies={'teacher': MODEL}"),
    ],
)
def test_policies_that_lack_or_that_nothing_reads_are_errors(h, given, says, remedy):
    with pytest.raises(TrainerError, match=says) as caught:
        check_policies(support.spec(h), KNOWN, given)
    assert remedy in caught.value.remedy
