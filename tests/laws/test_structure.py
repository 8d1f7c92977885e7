"""What is no fibration is refused before any other law is asked: too few levels, circles, paths that disagree."""

from oracles import on_batches, verdicts


@verdicts.wrong_specs("structure")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@on_batches.wrong_quivers("structure")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)
