"""A slice of the fuzz, for every change. `make test-all` runs as many cases as a release needs."""

import pytest
from thorough import some

from fuzz.judges import JUDGES
from fuzz.run import one


@pytest.mark.parametrize("name", JUDGES)
def test_no_verdict_is_contradicted(name):
    failures = [f for seed in some(range(200), 20) for f in one(name, seed).failures]
    assert not failures, "\n\n".join(failures)
