"""A slice of the fuzz, for every change. `make test-all` runs as many cases as a release needs."""

import pkgutil

import pytest
from thorough import some

from fuzz.judges import JUDGES, gate_laws, joint_facts, judge, kernel_laws
from fuzz.run import one


@pytest.mark.sampled
@pytest.mark.parametrize("name", JUDGES)
def test_no_verdict_is_contradicted(name):
    failures = [f for seed in some(range(200), 20) for f in one(name, seed).failures]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize(
    "searches", [judge.SEARCHES, gate_laws.SEARCHES, joint_facts.SEARCHES, (*kernel_laws.SEARCHES, kernel_laws.SLOWEST)]
)
def test_the_searches_that_judges_leave_out_exist(searches):
    for name in searches:
        assert callable(pkgutil.resolve_name(f"fibration.laws.{name}"))
