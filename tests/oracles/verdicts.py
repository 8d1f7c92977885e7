"""Checks the verdicts on a wrong spec: refuted laws fail on their counterexample.

`brute_force.py` computes everything again in rationals, without the symbolic engine. The test file of each law calls
`refused` on its rows of `wrong_specs.wrong()` and `wrong_on_rare_batches.wrong()`.
"""

from __future__ import annotations

import functools

import pytest
from hierarchies import wrong_on_rare_batches
from hierarchies.wrong_specs import KERNEL, undecidable, wrong

from fibration import Fibration, LawError, uniform
from oracles import brute_force
from oracles.counterexample_json import from_json

WRONG = {**wrong(), **wrong_on_rare_batches.wrong()}
SPECS = {**WRONG, **undecidable()}


@functools.cache
def report(name):
    return SPECS[name].hierarchy.verify()


def status(found, law, subject):
    return next(v.status for v in found.verdicts if (v.law, v.subject) == (law, subject))


def wrong_specs(law):
    """A test for every wrong spec that breaks `law`."""
    return pytest.mark.parametrize("name", [name for name, spec in WRONG.items() if spec.law == law])


def refused(name):
    """The law that the spec breaks refutes it, every counterexample holds, and the error names object, law and remedy."""
    spec, found = WRONG[name], report(name)
    assert not found.ok
    verdict = next((v for v in found.verdicts if (v.law, v.subject) == (spec.law, spec.subject)), None)
    assert verdict is not None, f"no verdict of '{spec.law}' on {spec.subject}:\n{found}"
    assert verdict.status == "refuted", found
    assert not verdict.accepted
    counterexamples_hold(spec.hierarchy, found)
    causes_hold(found)
    if spec.subject == KERNEL and len(spec.hierarchy.fibrations) == 1:
        mended_with_its_kernel(spec.hierarchy, found)
    with pytest.raises(LawError) as caught:
        found.raise_for_status()
    error = caught.value
    assert error.report is found
    assert spec.hierarchy.name in error.what
    assert error.required
    assert error.found
    assert str(verdict.error(spec.hierarchy.name))
    assert verdict.remedy
    if verdict.counterexample is not None:
        assert str(verdict.counterexample) in str(verdict.error(spec.hierarchy.name))
        assert verdict.counterexample.to_dict()["text"]


def counterexamples_hold(h, found):
    """Every counterexample is one, worked out again from what JSON has of it."""
    for verdict in found.verdicts:
        if verdict.status == "refuted":
            brute_force.confirm(h, from_json(h, verdict), found.verdicts)


def causes_hold(found):
    """Every failure stands by itself, or follows from a failure before it, under which it is told."""
    place = {(v.law, v.subject): i for i, v in enumerate(found.verdicts)}
    assert len(place) == len(found.verdicts)
    for i, v in enumerate(found.verdicts):
        if v.cause:
            cause = found.verdicts[place[v.cause]]
            assert place[v.cause] < i
            assert "proved" not in (v.status, cause.status)
            assert cause.status == "refuted" or v.status == "undecided"
            assert v.to_dict()["follows_from"] == {"law": cause.law, "subject": cause.subject}
    for v in found.failures:
        told = [c for c in found.causes if v.law in found.so_too(c) and v.subject in f"{found.so_too(c)} hierarchy"]
        assert v in found.causes or found.head(v) in told
    assert bool(found.causes) != found.ok


def mended_with_its_kernel(h, found):
    """What follows from the verdict on a kernel holds once the kernel is right."""
    ((source, target),) = [(f.source, f.target) for f in h.fibrations]
    mended = h.replace(fibrations=[Fibration(source, target, uniform())]).verify()
    holds = {(v.law, v.subject) for v in mended.verdicts if v.status == "proved"}
    assert {(v.law, v.subject) for v in found.failures if v not in found.causes} <= holds
