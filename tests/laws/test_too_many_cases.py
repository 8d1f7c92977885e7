"""A formula with too many cases leaves its law undecided."""

import pytest
from hierarchies import quivers, wrong_specs
from thorough import some

from fibration.laws import LAWS
from fibration.laws.signs import branches
from fibration.laws.subject import Subject

WRONG = {name: spec for name, spec in (wrong_specs.wrong() | quivers.wrong()).items() if spec.law in LAWS}


@pytest.fixture(autouse=True)
def one_case(monkeypatch):
    """A single choice is one too many."""
    monkeypatch.setattr(branches, "MAX_CASES", 1)


def verdicts(hierarchy, last):
    """Of the laws up to this one: later ones do not matter to it."""
    subject = Subject(hierarchy, [])
    for law in LAWS.values():
        subject.verdicts += law.decide(subject)
        if law.name == last or (law.needed_by_all and subject.first_failure(law.name)):
            break
    return {(v.law, v.subject): v.status for v in subject.verdicts}


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(WRONG, 4, 1))
def test_a_wrong_spec_with_too_many_cases_is_not_proved(name):
    spec = WRONG[name]
    found = verdicts(spec.hierarchy, spec.law)
    assert found.get((spec.law, spec.subject)) != "proved"
    assert any(law == spec.law and status != "proved" for (law, _), status in found.items())
