"""Options keep account of their keys."""

import math

import pytest

from fibration.configs.options import Options, flattened
from fibration.errors import SpecError

DEFAULTS = {"beta": 0.0, "kind": "a", "on": True, "many": None, "steps": 1}


def options(**given):
    return Options("TRL", given, DEFAULTS, ["learning_rate", "model."])


def test_a_given_option_is_read_before_its_default():
    o = options(beta=0.5)
    assert (o["beta"], o["kind"]) == (0.5, "a")
    assert o.is_given("beta") and not o.is_given("kind")


def test_an_unknown_option_is_an_error_with_the_nearest_known_one():
    with pytest.raises(SpecError, match="'betta' is not known") as error:
        options(betta=0.5)
    assert "did you mean 'beta'?" in str(error.value)


def test_an_option_that_does_not_touch_the_loss_is_accepted_alone_and_below_a_name():
    Options("TRL", {"learning_rate": 1, "model.path": 2}, DEFAULTS, ["learning_rate", "model."])
    with pytest.raises(SpecError, match=r"'learning_rate\.x'"):
        Options("TRL", {"learning_rate.x": 1}, DEFAULTS, ["learning_rate", "model."])


def test_a_key_that_is_no_text_is_an_error():
    with pytest.raises(SpecError, match="'1' is not known"):
        Options("TRL", {1: 2}, DEFAULTS)


@pytest.mark.parametrize("value", [True, "many", None, math.inf, math.nan, [1], "nan", 10**400])
def test_what_is_no_finite_number_is_an_error_that_names_the_option(value):
    with pytest.raises(SpecError, match="TRL: the option 'beta'"):
        options(beta=value).number("beta")


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), ("1e-4", 1e-4), (0.5, 0.5), ("-2", -2.0)])
def test_a_number_and_a_text_that_writes_one_are_numbers(value, number):
    assert options(beta=value).number("beta") == number


def test_a_number_at_its_bound_is_an_error():
    with pytest.raises(SpecError, match="above 0"):
        options(beta=0).number("beta", above=0)


@pytest.mark.parametrize("value", [1.5, 0, "x", None, True])
def test_what_is_no_whole_number_is_an_error(value):
    with pytest.raises(SpecError, match="TRL: the option 'steps'"):
        options(steps=value).whole("steps")


def test_none_is_no_number_where_that_is_allowed():
    assert options().number_or_none("many") is None and options(many="2").number_or_none("many") == 2


@pytest.mark.parametrize(("value", "flag"), [(True, True), (False, False), ("true", True), ("False", False)])
def test_a_flag_may_be_text(value, flag):
    assert options(on=value).flag("on") is flag


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_what_is_no_flag_is_an_error(value):
    with pytest.raises(SpecError, match="true or false"):
        options(on=value).flag("on")


def test_another_choice_is_an_error_with_the_nearest_one():
    with pytest.raises(SpecError, match="did you mean 'dapo'"):
        options(kind="dapo_").choice("kind", ["dapo", "grpo"])
    with pytest.raises(SpecError, match="one of dapo, grpo"):
        options(kind=["dapo"]).choice("kind", ["dapo", "grpo"])


def test_options_that_nobody_asked_for_are_known():
    o = options(beta=0.5, steps=1, kind="b")
    o.choice("kind", ["a", "b"])
    assert o.unread() == ("beta",)  # `steps` has its default


def test_a_value_is_said_with_where_it_comes_from():
    assert (options(beta=0.5).said("beta"), options().said("kind")) == ("beta=0.5", "kind=a (the default)")


def test_a_mapping_without_an_end_is_an_error():
    cycle: dict[str, object] = {}
    cycle["a"] = cycle
    wide: object = 1
    for _ in range(20):
        wide = {str(i): wide for i in range(9)}
    for endless in (cycle, {"a": wide}):
        with pytest.raises(SpecError, match="have no end"):
            flattened(endless)
        with pytest.raises(SpecError, match="'a' is not known"):  # and quotes its beginning alone
            Options("TRL", endless, DEFAULTS)


def test_a_mapping_is_flat_by_dots():
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2]}
