"""The recovery returns the ratio from ungated channels."""

import pytest
from oracles import verdicts


@pytest.mark.sampled
@verdicts.wrong_specs("recovery")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
