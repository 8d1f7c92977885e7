"""What is wrong with parameters is said before a model is loaded."""

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
from fibration.trainers.parameters import check_parameters

SHIPPED = fibration.load("fiberpo_domain")
WRONG = [
    ({"C_domian": 0.1}, ("no parameter 'C_domian'", "C_domain")),
    ({"epsilon": -0.1}, ("epsilon", "-0.1")),
    ({"C_domain": {"math": {"+": 0.3, "-": -2.0}}}, ("C_domain", "-2")),
    ({"C_domain": torch.tensor([0.1, -3.0])}, ("C_domain", "-3")),
    ({"epsilon": "much"}, ("epsilon", "much")),
]


@pytest.mark.parametrize(("parameters", "words"), WRONG)
def test_it_is_named(parameters, words):
    with pytest.raises(ParameterError) as raised:
        check_parameters(SHIPPED, parameters)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"epsilon": 0.1},
        {"C_domain": {"math": {"+": 0.3, "-": 0.2}, "code": 0.1}},
        {"C_domain": torch.rand(3) + 0.1},
    ],
)
def test_what_is_right_passes(parameters):
    check_parameters(SHIPPED, parameters)


def test_one_without_a_value_is_asked_for():
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
