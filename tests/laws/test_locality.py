"""No kernel, gate or density reads what it may not see."""

from oracles import on_batches, verdicts


@verdicts.wrong_specs("locality")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@on_batches.wrong_quivers("locality")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)
