"""Residuals sum to 0 over each coarser element."""

from oracles import on_batches


@on_batches.wrong_quivers("orthogonality")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)
