"""A renamed hierarchy is the same declaration under other names."""

from __future__ import annotations

import pytest

from fibration import Hierarchy, Parameter, SpecError, count, load, strata
from fibration.language.fixed import with_parameters
from fibration.language.loading import shipped
from fibration.language.roles import declared_names, renamed

OTHER = {"token": "tok", "trajectory": "response", "epsilon_low": "a", "epsilon_high": "b", "reference": "ref"}


@pytest.mark.parametrize("name", shipped())
def test_renaming_there_and_back_gives_the_same_declaration(name):
    h = load(name)
    names = {n: f"other_{n}" for n in declared_names(h) - {"current", "old", "batch"}}
    there = renamed(h, names)
    assert declared_names(there) & set(names) == set()
    assert renamed(there, {b: a for a, b in names.items()}) == h


def test_two_names_may_be_exchanged():
    h = load("grpo")
    swapped = renamed(h, {"epsilon_low": "epsilon_high", "epsilon_high": "epsilon_low"})
    assert str(swapped.gates[h.leaves[0]]) == "pessimistic_clip_gate(epsilon_high, epsilon_low)"
    assert swapped.parameters["epsilon_high"].upper == 1


def test_words_of_the_language_and_reasons_stay():
    (token,) = strata("token")
    level = Parameter("level", default=0.5, upper=1)
    h = load("grpo").replace(gates={token: load("grpo").gates[token].per(level / count(token, over=load("grpo").rows))})
    made = renamed(h, {"level": "over", "token": "of"})
    assert "count(of, over=trajectory)" in str(made.gates[made.leaves[0]])
    assert "over/count" in str(made.gates[made.leaves[0]])
    given_up = load("gspo")
    assert renamed(given_up, {"trajectory": "row"}).gives_up == given_up.gives_up


def test_a_subject_that_is_given_up_is_renamed():
    h = load("fiberpo").replace(gives_up={"inward of trajectory": "trajectory drift"})
    assert dict(renamed(h, {"trajectory": "row"}).gives_up) == {"inward of row": "trajectory drift"}


def test_a_name_that_is_taken_is_an_error():
    with pytest.raises(SpecError, match="twice"):
        renamed(load("grpo"), {"epsilon_low": "epsilon_high"})
    assert isinstance(renamed(load("grpo"), {}), Hierarchy)


def test_a_level_of_a_quantile_is_no_parameter_of_other_bounds():
    h = load("entropy_mask")
    (level,) = (p for p in h.parameters.values() if p.name == "level")
    with pytest.raises(SpecError, match="the level is c") as refused:
        with_parameters(h, {level: Parameter("c", default=0.5)}, {})
    assert "a number from 0 to 1" in str(refused.value)
    assert "c" in with_parameters(h, {level: Parameter("c", default=0.5, upper=1)}, {}).parameters
