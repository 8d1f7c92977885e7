"""Declarations are immutable, and equal by content."""

import copy
import pickle

import pytest
from pydantic import ValidationError
from support import SPECS, domain, prompt_group, spec, token, trajectory, two_levels

from fibration import (
    Attribute,
    Parameter,
    advantage,
    after,
    identity_gate,
    mean,
    residual,
    strata,
)
from fibration.language.atoms import Stratum
from fibration.language.declared import FrozenMap

C = Parameter("C", default={"+": 0.2, "-": 0.1}, per_channel=True)
weight = Attribute("weight", on=token)


def test_declarations_cannot_be_changed():
    h = two_levels()
    fibration = h.fibrations[0]
    for thing, name in [
        (h, "name"), (h, "gates"), (h, "anything"), (fibration, "kernel"), (h.gates[token], "expression"), (C, "default"),
        (C, "lower"), (weight, "positive"), (token, "name"), (h.decomposition, "recovery"), (h.objective, "weight"),
    ]:  # fmt: skip
        with pytest.raises((ValidationError, AttributeError, TypeError, ValueError)):
            setattr(thing, name, "changed")


@pytest.mark.parametrize("which", ["gates", "gives_up", "parameters", "default"])
def test_mappings_cannot_be_changed(which):
    h = two_levels(gives_up={"first_order": "why"})
    mapping = h.parameters["C"].default if which == "default" else getattr(h, which)
    before = dict(mapping)
    key = next(iter(mapping))

    def update_in_place(m):
        m |= {key: 1}

    for change in (
        lambda m: m.__setitem__(key, 1), lambda m: m.__delitem__(key), lambda m: m.update({key: 1}), lambda m: m.pop(key),
        lambda m: m.popitem(), lambda m: m.clear(), lambda m: m.setdefault("new", 1), update_in_place,
    ):  # fmt: skip
        with pytest.raises(TypeError):
            change(mapping)
    assert dict(mapping) == before
    assert hash(h) == hash(two_levels())


def test_the_callers_mappings_are_copied():
    gates = {trajectory: identity_gate(), token: identity_gate()}
    default = {"+": 0.5, "-": 0.25}
    h = two_levels(gates=gates)
    p = Parameter("p", default=default, per_channel=True)
    gates.clear()
    default["+"] = 9
    assert set(h.gates) == {token, trajectory}
    assert p.default == {"+": 0.5, "-": 0.25}


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", ["fiberpo_domain", "gspo"])
def test_copies_are_equal(copier, name):
    again = copier(spec(name))
    assert again == spec(name)
    assert hash(again) == hash(spec(name))


@pytest.mark.parametrize(
    "formula", [1 + residual, mean(advantage, over=trajectory), after(advantage, over=trajectory)], ids=repr
)
def test_formulas_pickled_in_another_process_are_equal(formula):
    """Another process has other hashes of names, and formulas store their hash."""
    hashed = hash(formula)
    object.__setattr__(formula, "_hash", hashed + 1)
    again = pickle.loads(pickle.dumps(formula))
    object.__setattr__(formula, "_hash", hashed)
    assert hash(again) == hashed
    assert again == formula


def test_per_channel_values_hash_by_content():
    assert hash(FrozenMap({"+": 1.0, "-": 2.0})) == hash(FrozenMap({"-": 2.0, "+": 1.0}))


def test_hierarchies_can_be_keys_of_a_mapping():
    assert {spec(n): n for n in SPECS}[spec("ppo")] == "ppo"
    assert spec("ppo") != spec("ppo").replace(name="other")
    assert two_levels().replace(name="two_levels") == two_levels()


def test_strata_are_declared_in_one_line():
    a, b, c = strata("a, b c")
    assert (a.name, b.name, c.name) == ("a", "b", "c")
    assert prompt_group != domain
    assert Stratum("a") == a
