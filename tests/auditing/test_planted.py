"""Mistakes in functions are named by the property that they break; right functions in unusual words are not accused."""

import pytest
from oracles.loss_functions import MISTAKES, RIGHT

from fibration import audit

SMALL = 4  # tokens of a batch that shows a mistake


@pytest.mark.sampled
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_by_the_property_that_it_breaks(name):
    m = MISTAKES[name]
    found = audit(m.function, m.like, parameters=m.parameters)
    if name == "nan_times_zero":  # trainers pad with finite numbers, so that NaN under the mask is a note
        assert next(f.text for f in found.findings if f.name == "mask").startswith("a ratio that overflows")
        return
    assert not found.ok
    named = {f.name for f in found.failures} | {own.name for own, _ in found.differences}
    assert m.breaks in named, str(found)
    if not found.identified:
        assert found.losses[0].batch.tokens <= SMALL
    assert all(f.batch.tokens <= SMALL for f in found.failures if f.batch and f.name != "rows")


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_function_is_identified_and_not_accused(name):
    function, like = RIGHT[name]
    found = audit(function, like)
    assert found.ok and found.identified, str(found)


def test_there_are_many():
    assert len(MISTAKES) >= 60 and len(RIGHT) >= 20
