"""A trainer's clip range names the parameters that take its place, where they are clear."""

import pytest

from fibration import Parameter, load, pessimistic_clip_gate, strata
from fibration.trainers.clip_range import clip_parameters, in_its_place

BOTH = {"epsilon_low": 0.1, "epsilon_high": 0.28}


@pytest.mark.parametrize(
    ("name", "both", "above"),
    [
        ("grpo", BOTH, {"epsilon_high": 0.28}),
        ("gspo", BOTH, {"epsilon_high": 0.28}),
        ("cispo", BOTH, {"epsilon_high": 0.28}),
        ("ppo", BOTH, {"epsilon_high": 0.28}),  # its ceiling holds for other advantages
        ("grpo_rewards", BOTH, {"epsilon_high": 0.28}),
        ("gmpo", {"epsilon_low": None, "epsilon_high": None}, {"epsilon_high": None}),  # bounds log ratios
        ("cispo_absolute", {}, {"ceiling": None}),  # bounds the ratio itself, and on one side
        ("bapo", {"c_low": None, "c_high": None}, {"c_high": None}),
        ("truly_ppo", {}, {}),  # rolls back
        ("sapo", {}, {}),  # bounds nothing
        ("apc_obj", {}, {}),  # bounds the tokens of a state together
        ("fiberpo_domain_inward_clip", {}, {}),  # several levels
        ("rloo", {}, {}),  # has no gate
    ],
)
def test_parameters_bound_ratios_beyond_a_side(name, both, above):
    assert clip_parameters(load(name), 0.1, 0.28) == both
    assert clip_parameters(load(name), None, 0.28) == above


def test_one_bound_takes_the_place_of_equal_sides_alone():
    epsilon, (token,) = Parameter("epsilon", default=0.2, upper=1), strata("token")
    symmetric = load("grpo").replace(name="symmetric", gates={token: pessimistic_clip_gate(epsilon, epsilon)})
    assert clip_parameters(symmetric, 0.1, 0.1) == {"epsilon": 0.1}
    assert clip_parameters(symmetric, 0.1, 0.2) == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo", "{'epsilon_low': 0.1, 'epsilon_high': 0.28}"),
        ("gmpo", "'epsilon_low' and 'epsilon_high', in the units of the gates that 'fibration show' prints"),
        ("fiberpo", "choose among the parameters of 'fiberpo': C_trajectory and epsilon"),
        ("rloo", "leave it out: 'rloo' has no parameters"),
    ],
)
def test_the_remedy_names_parameters(name, words):
    assert in_its_place(load(name), 0.1, 0.28, str) == words
