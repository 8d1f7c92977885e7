"""Hierarchies without a valid graph are refuted before any other law: too few levels, cycles, paths that disagree."""

from oracles import quiver_verdicts, verdicts


@verdicts.wrong_specs("structure")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@quiver_verdicts.wrong_quivers("structure")
def test_wrong_quivers_are_refused(name):
    quiver_verdicts.refused(name)
