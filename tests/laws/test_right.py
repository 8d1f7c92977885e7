"""Right specs verify, also unusual ones. Their proved laws hold on every small hierarchy that is tried."""

import functools

import pytest
from hierarchies.right import RIGHT, SHIPPED
from oracles import brute_force
from thorough import some

from fibration import load
from fibration.language.report import Report


@functools.cache
def report(name: str) -> Report:
    return (load(name) if name in SHIPPED else RIGHT[name]).verify()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_specs_verify(name):
    found = report(name)
    assert found.ok, found
    assert all(v.status == "proved" or v.given_up for v in found.verdicts)
    found.raise_for_status()


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_unusual_right_specs_verify(name):
    found = report(name)
    assert found.ok, found


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*SHIPPED, *some(RIGHT, 2)])
def test_proved_laws_hold_on_small_hierarchies(name):
    found = report(name)
    depth = len(found.hierarchy.order)
    sizes = (1, 2, 3) if depth > 3 else (1, 2, 3, 4)
    assert brute_force.uphold(found.hierarchy, found.verdicts, brute_force.worlds_for(found.hierarchy, sizes)) > 5
