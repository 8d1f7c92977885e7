"""Wrong parameters are refused before a model is loaded."""

import numpy as np
import pytest
import torch

import fibration
from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    ParameterError,
    aggregate_gate,
    clip_gate,
    count,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)
from fibration.trainers.intake import at_ratio_one, check_labelled, check_parameters

SHIPPED = fibration.load("fiberpo_domain")
WRONG = [
    ({"C_domian": 0.1}, ("no parameter 'C_domian'", "C_domain")),
    ({"epsilon": -0.1}, ("epsilon", "-0.1")),
    ({"C_domain": {"math": {"+": 0.3, "-": -2.0}}}, ("C_domain", "-2")),
    ({"C_domain": torch.rand(3, 2) + 0.1}, ("C_domain", "in the order of elements", "by label")),
    ({"C_domain": {"+": [0.1, 0.2], "-": 0.1}}, ("C_domain", "in the order of elements")),
    ({"epsilon": "much"}, ("epsilon", "much")),
    ({"C_domain": {"+": 0.1}}, ("C_domain", "lacks a channel", "'+'")),
    ({"C_domain": {"algebra": {"+": 0.1}}}, ("C_domain", "domain 'algebra' lacks a channel")),
    ({"C_domain": {"+": 0.1, "_": 0.1}}, ("C_domain", "'+' and '_'")),
    ({"C_domain": np.array([0.1, 0.3])}, ("C_domain", "in the order of elements")),
    ({"C_domain": [0.1, (0.1, 0.3)]}, ("C_domain", "in the order of elements")),
    ({"epsilon": {"algebra": 0.1}}, ("epsilon", "'algebra'", "one number", "on=")),
    ({"C_trajectory": {"first": 0.1}}, ("C_trajectory", "'first'", "no labels")),
    ({"epsilon": {"+": 0.1, "-": 0.2}}, ("epsilon", "not declared per channel")),
    ({"epsilon": None}, ("epsilon", "leave it out to use the default")),
    ([("epsilon", 0.1)], ("parameters are [('epsilon', 0.1)]", "a mapping")),
    (None, ("parameters are None", "a mapping")),
]


@pytest.mark.parametrize(("parameters", "words"), WRONG)
def test_a_wrong_parameter_is_named(parameters, words):
    with pytest.raises(ParameterError) as raised:
        check_parameters(SHIPPED, parameters)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"epsilon": 0.1},
        {"C_domain": {"math": {"+": 0.3, "-": 0.2}, "code": 0.1}},
        {"C_domain": {"math": (0.2, 0.3), None: torch.tensor(0.1)}},
    ],
)
def test_right_parameters_pass(parameters):
    check_parameters(SHIPPED, parameters)


def test_a_parameter_without_a_value_is_an_error():
    token, trajectory = strata("token trajectory")
    length = count(token, over=trajectory)
    h = Hierarchy(
        name="asking",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: aggregate_gate(Parameter("C"), rollback=length), token: clip_gate(0.1).per(1 / length)},
        decomposition=signed_log_ratio(scale=1 / length),
        objective=trajectory_mean(),
    )
    with pytest.raises(ParameterError, match=r"'C' of 'asking' has no value[\s\S]*parameters=\{'C'"):
        check_parameters(h, {})
    check_parameters(h, {"C": 0.1})


def test_values_per_label_are_refused_where_the_user_cannot_know_the_labels():
    given = {"C_prompt_group": {0: 0.1}, "C_domain": {"maps": 0.1}}
    check_parameters(SHIPPED, given)
    with pytest.raises(ParameterError, match="'C_prompt_group' is given per element: 0"):
        check_parameters(SHIPPED, given, ["domain"])


BUDGETS = {"C_domain": {"algebra": {"+": 0.3, "-": 0.2}, "maps": 0.1}, "epsilon": 0.1}


def test_every_label_of_the_data_needs_a_value():
    check_labelled(SHIPPED, BUDGETS, "domain", ["maps", "algebra"], "train_dataset")
    check_labelled(SHIPPED, BUDGETS, "prompt_group", ["one", "two"], "train_dataset")
    with pytest.raises(ParameterError, match="'C_domain' has no value for the domain 'algbra'") as raised:
        check_labelled(SHIPPED, BUDGETS, "domain", ["maps", "algbra"], "train_dataset")
    assert "of train_dataset: 'maps', 'algbra'" in str(raised.value)
    others = {**BUDGETS, "C_domain": {"algebra": 0.3, None: 0.1}}
    check_parameters(SHIPPED, others)
    check_labelled(SHIPPED, others, "domain", ["maps", "elsewhere"], "train_dataset")


def test_at_ratio_1_any_label_has_a_value_and_values_change_nothing():
    op = fibration.compile(SHIPPED, "torch")
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    labels = ["maps", "elsewhere", "nowhere"]
    index = op.index(mask=mask, prompt_group=[0, 1, 2], domain=labels)
    likely, advantages = torch.randn(3, 3), torch.tensor([1.0, -2.0, 0.5])
    plain = op.coefficients(likely, likely, advantages, index, {"C_domain": dict.fromkeys(labels, 0.1)})
    given = {"C_domain": {"map": 0.1}}
    with pytest.raises(ParameterError):
        op.coefficients(likely, likely, advantages, index, given)
    found = op.coefficients(likely, likely, advantages, index, at_ratio_one(given))
    assert torch.equal(found.values, plain.values) and torch.equal(found.objective, plain.objective)
    assert at_ratio_one({"C_domain": {"algebra": 0.3, "maps": 0.1}})["C_domain"]["maps"] == 0.1
