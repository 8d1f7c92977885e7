"""Composites along different paths agree: there is one measure that all kernels disintegrate."""

from oracles import on_batches


@on_batches.wrong_quivers("coherent")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)


def test_trees_have_no_verdict_on_coherence():
    assert not [v for v in on_batches.verdicts("tree of one measure") if v.law == "coherent"]
