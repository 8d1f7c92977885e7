"""Residuals sum to 0 over each coarser element."""

import pytest
from oracles import on_batches


@pytest.mark.sampled
@on_batches.wrong_quivers("orthogonality")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)
