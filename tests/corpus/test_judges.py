"""No judge of the fuzz contradicts a verdict or a fact on any hierarchy of the tests, or on random ones."""

import random
from importlib import import_module
from pathlib import Path

import pytest
from fuzz.judges import JUDGES
from fuzz.judges.judge import OfHierarchy
from hierarchies.every import FAMILIES, hierarchies_in
from thorough import some

from corpus.record import FILES, keys
from fibration.language.hierarchy import fingerprint

# `crash` asks for a whole report, as the records do; pairs are pairs; `bounds` reads the formulas that it draws
BESIDE = ("crash", "crash of a pair", "equivalent", "bounds")
RECORDED = {key: h for file in FILES if file != "pairs" for key, h in keys(file).items()}
LAWS = [import_module(f"laws.{path.stem}") for path in sorted(Path(__file__).parents[1].glob("laws/test_*.py"))]
TABLES = {f"{h.name} {(fingerprint(h) or str(h))[:8]}": h for module in LAWS for h in hierarchies_in(vars(module))}
EVERY = {**RECORDED, **TABLES}


def judged(h):
    for name, judge in JUDGES.items():
        if name not in BESIDE:
            _, complaint = judge.judge(OfHierarchy(h), random.Random(1))
            assert not complaint, f"{name}: {complaint}"


@pytest.mark.sampled
@pytest.mark.parametrize("key", some(EVERY, 3))
def test_no_verdict_on_a_hierarchy_of_the_tests_is_contradicted(key):
    judged(EVERY[key])


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "seed"), some([(f, s) for s in range(30) for f in FAMILIES], 7))
def test_no_verdict_on_a_random_hierarchy_is_contradicted(family, seed):
    judged(FAMILIES[family](seed))
