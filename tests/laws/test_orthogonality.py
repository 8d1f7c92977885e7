"""Residuals sum to 0 over each coarser element."""

import pytest
from oracles import quiver_verdicts


@pytest.mark.sampled
@quiver_verdicts.wrong_quivers("orthogonality")
def test_wrong_quivers_are_refused(name):
    quiver_verdicts.refused(name)
