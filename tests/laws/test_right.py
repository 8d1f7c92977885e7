"""Right specs verify, also unusual ones."""

import functools

import pytest
from hierarchies.additive_kernels import CHAIN, over, right_kernels
from hierarchies.builders import budget, epsilon
from hierarchies.right import RIGHT, SHIPPED

from fibration import aggregate_gate, clip_gate, count, load, log_ratio, signed_log_ratio
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


def test_chains_of_additive_measures_are_always_proved():
    """Every chain of additive measures, up to four strata, with every gate that a function makes, is proved."""
    for levels in (CHAIN[:1], CHAIN[:2], CHAIN):
        for first in range(2):
            pairs = list(zip(levels, levels[1:], strict=False))
            kernels = [right_kernels(a, b)[min(first, i)] for i, (a, b) in enumerate(pairs)]
            for split in (log_ratio(), signed_log_ratio()):
                gate = [clip_gate(epsilon), aggregate_gate(budget, rollback=count(CHAIN[0])).inward()][first]
                h = over(levels, kernels).replace(gates=dict.fromkeys(levels, gate), decomposition=split)
                found = h.verify()
                assert found.ok, found
                assert all(v.status == "proved" for v in found.verdicts)
