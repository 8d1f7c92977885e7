"""Where a trainer is not installed, its configs are read, and everything else names the command that installs it."""

import importlib.util
import sys

import pytest

from fibration import MissingDependency


@pytest.fixture
def package(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fibration.trainers.trl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return importlib.import_module("fibration.trainers.trl")


@pytest.mark.parametrize("name", ["FibrationGRPOTrainer", "BY_PROMPT"])
def test_a_missing_trl_is_an_error_with_the_command_that_installs_it(package, name):
    with pytest.raises(MissingDependency, match=r"pip install '\.\[trl\]'"):
        getattr(package, name)


def test_a_missing_torchrl_is_an_error_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl", None)
    monkeypatch.delitem(sys.modules, "fibration.trainers.torchrl", raising=False)
    with pytest.raises(MissingDependency, match=r"pip install '\.\[torchrl\]'"):
        importlib.import_module("fibration.trainers.torchrl")


def test_a_config_is_read_without_trl(package):
    assert package.hierarchy_of({"loss_type": "grpo"}).hierarchy.name == "trl_grpo"


def test_another_name_is_no_attribute(package):
    with pytest.raises(AttributeError, match="no attribute 'hierarchy'"):
        package.hierarchy
