"""The strata that take labels, the sources of labels, and the hierarchies that a trainer can name."""

import pytest
import support
import torch

from fibration import TrainerError, token_mean
from fibration.language.statistics import before
from fibration.trainers.intake import as_label, as_operator, label_sources, wanted

KNOWN = {"prompt_group": "uid", "domain": "data_source"}


@pytest.mark.parametrize(
    ("name", "strata"),
    [
        ("grpo", ()),
        ("gspo", ()),
        ("fiberpo_domain", ("prompt_group", "domain")),
        ("fiberpo_experts", ("expert",)),
        ("rloo", ("prompt_group",)),
        ("hierarchical_grpo", ("prompt_group", "domain")),
    ],
)
def test_the_strata_that_take_labels_are_listed(name, strata):
    assert wanted(support.spec(name)) == strata


def test_labels_of_the_user_replace_those_of_the_trainer():
    h = support.spec("fiberpo_domain")
    assert label_sources(h, known=KNOWN) == KNOWN
    assert label_sources(h, {"domain": "subject"}, KNOWN) == {"prompt_group": "uid", "domain": "subject"}
    assert label_sources(h, {"trajectory": "key"}, KNOWN) == {**KNOWN, "trajectory": "key"}
    assert label_sources(support.spec("grpo"), known=KNOWN) == {}


def test_a_stratum_without_labels_is_an_error():
    with pytest.raises(TrainerError, match="no labels for 'domain'") as caught:
        label_sources(support.spec("fiberpo_domain"), known={"prompt_group": "uid"})
    assert caught.value.found == "sources for prompt_group"


@pytest.mark.parametrize(
    ("spec", "name"), [("grpo", "domain"), ("fiberpo_domain", "token"), ("fiberpo_domain", "dmain")]
)
def test_labels_for_a_name_that_takes_none_are_an_error(spec, name):
    with pytest.raises(TrainerError, match=f"labels for '{name}', which is not a stratum"):
        label_sources(support.spec(spec), {name: "column"}, KNOWN)


def test_the_remedy_is_in_the_trainers_syntax():
    h = support.spec("fiberpo_domain")
    with pytest.raises(TrainerError) as caught:
        label_sources(h, {}, {"domain": "source"})
    assert "labels={'prompt_group': COLUMN}" in caught.value.remedy
    with pytest.raises(TrainerError) as caught:
        label_sources(h, {}, {"domain": "source"}, "+labels.{}=FIELD".format)
    assert "+labels.prompt_group=FIELD" in caught.value.remedy and "COLUMN" not in caught.value.remedy


def test_labels_for_a_hierarchy_without_labels_are_an_error():
    with pytest.raises(TrainerError) as caught:
        label_sources(support.spec("grpo"), {"domain": "source"})
    remedy = "leave 'domain' out of labels"
    assert (caught.value.required, caught.value.remedy) == ("none: 'grpo' takes no labels", remedy)


def test_labels_of_another_hierarchy_are_all_named():
    given = {"prompt_group": "uid", "domain": "source", "expert": "path"}
    with pytest.raises(
        TrainerError, match="labels for 'domain' and 'expert', which are not strata of 'rloo'"
    ) as caught:
        label_sources(support.spec("rloo"), given)
    assert caught.value.remedy == "leave 'domain' and 'expert' out of labels"
    with pytest.raises(TrainerError) as caught:
        label_sources(support.spec("fiberpo_domain"), {"dmain": "source"}, KNOWN)
    assert caught.value.remedy == "did you mean 'domain'?"


@pytest.mark.parametrize("given", ["domain", ["domain"], 3])
def test_labels_that_are_not_a_mapping_are_an_error(given):
    with pytest.raises(TrainerError, match="labels are") as caught:
        label_sources(support.spec("fiberpo_domain"), given, {"prompt_group": "uid"})
    assert caught.value.remedy == "labels={'domain': COLUMN}"


@pytest.mark.parametrize("value", [None, float("nan"), torch.tensor(float("nan")), ["a"], {"a": 1}, torch.arange(2)])
def test_a_value_that_is_no_label_is_none(value):
    assert as_label(value) is None


@pytest.mark.parametrize(("value", "label"), [("a", "a"), (0, 0), (("a", 1), ("a", 1)), (torch.tensor(3), 3), ("", "")])
def test_a_value_becomes_a_label(value, label):
    assert as_label(value) == label and not isinstance(as_label(value), torch.Tensor)


def in_order():
    """Of trajectories, as they come in their group."""
    h = support.spec("fiberpo_domain")
    group = next(s for s in h.strata if s.name == "prompt_group")
    return h.replace(
        objective=token_mean().weigh(1 / (1 + before(1, over=group))), gives_up={**h.gives_up, "causal": "none"}
    )


@pytest.mark.parametrize(
    ("hierarchy", "says"),
    [
        (in_order, "position\\(over=prompt_group\\) of 'fiberpo_domain' is an order over a prompt_group"),
        (lambda: support.spec("fiberpo_modal"), "tokens of several kinds, text_token and image_token"),
        (lambda: support.spec("fiberpo_turns"), "'turn' of 'fiberpo_turns' lies over 'trajectory', the rows"),
    ],
)
def test_strata_that_no_label_per_row_can_describe_are_refused(hierarchy, says):
    with pytest.raises(TrainerError, match=says):
        label_sources(hierarchy(), known=KNOWN)


def test_an_operator_is_made_from_a_name_a_file_or_an_operator():
    op = as_operator("grpo", "torch")
    assert (op.hierarchy, op.backend) == (support.spec("grpo"), "torch")
    assert as_operator(op) is as_operator(op, "auto") is as_operator(op, "torch") is op
    assert as_operator(support.spec("grpo"), "torch").hierarchy.name == "grpo"
    with pytest.raises(TrainerError, match="backend='c' for an operator that is already compiled"):
        as_operator(op, "c")
    with pytest.raises(TrainerError, match="the hierarchy is a dict"):
        as_operator({"hierarchy": "grpo"})
