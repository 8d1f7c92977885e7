"""Right specs verify, however unusual; and what was proved of them holds on every small hierarchy that is tried."""

import functools
from dataclasses import replace

import pytest
from hierarchies.right import RIGHT, SHIPPED, SUBSPACES
from oracles import brute

from fibration import Hierarchy, load
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


@pytest.mark.parametrize("name", RIGHT)
def test_unusual_but_right(name):
    found = report(name)
    assert found.ok, found


@pytest.mark.parametrize("name", [*SHIPPED, *RIGHT])
def test_what_was_proved_holds_on_small_hierarchies(name):
    found = report(name)
    depth = len(found.hierarchy.order)
    sizes = (1, 2, 3) if depth > 3 else (1, 2, 3, 4)
    assert brute.uphold(found.hierarchy, found.verdicts, brute.worlds_for(found.hierarchy, sizes)) > 5


@pytest.mark.parametrize("name", SUBSPACES)
def test_first_order_on_a_subspace(name):
    h, stratum = SUBSPACES[name]
    found = h.verify()
    assert found.ok, found
    first = [v for v in found.verdicts if v.law == "first_order"]
    assert first[0].status != "proved"
    assert first[0].given_up
    assert [v.subject for v in first[1:]] == ([] if stratum is None else [f"advantages constant on each {stratum}"])
    brute.uphold(h, found.verdicts, brute.worlds_for(h, (1, 2, 3, 4)))


# A parameter that varies over trajectories has one value in each of these worlds.
# Slopes that depend on the advantage are not looked into.
UNCLAIMED = [n for n, (_, s) in SUBSPACES.items() if s is None and "parameter" not in n and "sign" not in n]


@pytest.mark.parametrize("name", UNCLAIMED)
def test_subspaces_that_are_not_claimed_do_not_hold(name):
    """The claim that was not made for these would have been false: brute force finds a batch on which it fails."""
    h, _ = SUBSPACES[name]
    found = h.verify()
    good = next(s for s in reversed(h.order[:-1]) if found_identity(found, s))
    claim = next(v for v in found.verdicts if v.law == "first_order")
    false = replace(claim, status="proved", subject=f"advantages constant on each {good}")
    with pytest.raises(AssertionError):
        brute.uphold(h, [false], brute.worlds_for(h, (2, 3, 4)))


def found_identity(found, stratum):
    return any(
        v.law == "identity" and v.subject == f"gate on {stratum}" and v.status == "proved" for v in found.verdicts
    )


def test_gspo_says_what_still_holds():
    found = report("gspo")
    first, second = (v for v in found.verdicts if v.law == "first_order")
    assert (first.status, bool(first.given_up)) == ("refuted", True)
    assert (second.status, second.subject) == ("proved", "advantages constant on each trajectory")
    assert {v.law for v in found.verdicts if v.given_up} == {"identity", "first_order"}


@pytest.mark.parametrize("name", SHIPPED)
def test_laws_survive_json(name):
    """A spec that was written and read verifies alike."""
    h = load(name)
    again = Hierarchy.model_validate_json(h.model_dump_json()).verify()
    assert str(again) == str(report(name))
