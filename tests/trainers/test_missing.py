"""The error for a trainer that is not installed names the command that installs it."""

import importlib.util
import sys

import pytest

from fibration import MissingDependency


def test_a_missing_trl_is_an_error_with_the_command_that_installs_it(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fibration.trainers.trl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install '\.\[trl\]'"):
        importlib.import_module("fibration.trainers.trl")
