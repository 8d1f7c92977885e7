"""The laws of trees and quivers: right ones are proved, arguments name their steps, and random ones get right verdicts.

Wrong ones are in the files of the laws that refuse them.
"""

import pytest
from hierarchies.quivers import MINE
from oracles.quiver_verdicts import RIGHT, WRONG, shown, verdicts


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_every_law_of_a_right_quiver_is_proved(name):
    found = verdicts(name)
    assert {v.status for v in found} == {"proved"}, [shown(v) for v in found if v.status != "proved"]
    laws = {v.law for v in found}
    assert laws == set(MINE) - ({"coherent"} if RIGHT[name].hierarchy.shape.is_tree else set())
    assert all(v.argument for v in found)


def test_the_collection_is_large_and_varied():
    assert len(RIGHT) + len(WRONG) >= 50
    assert {c.law for c in WRONG.values()} == set(MINE)
    shapes = [c.hierarchy.shape for c in (*RIGHT.values(), *WRONG.values())]
    assert sum(s.is_tree for s in shapes if s.strata) >= 15
    assert sum(not s.is_tree for s in shapes) >= 20


def test_the_arguments_name_paths_and_projections():
    said = {(v.law, v.subject): v.argument for v in verdicts("crossing, balanced")}
    assert said["structure", "hierarchy"].endswith("paths from trajectory to batch agree, into the batch: one element")
    assert said["orthogonality", "residual on trajectory"].startswith(
        "P_domain(s - s_domain - s_modality + s_batch) = P_domain - P_domain - P_batch + P_batch = 0 "
        "(P_domain P_modality = P_batch by balanced(domain, modality))"
    )
    assert "m(domain) = count(token, over=domain)" in said["coherent", "hierarchy"]
    short = {(v.law, v.subject): v.argument for v in verdicts("shortcut, by counts")}
    assert "paths from token to trajectory agree, checked on every index" in short["structure", "hierarchy"]
    tree = {(v.law, v.subject): v.argument for v in verdicts("tree of one measure")}
    joint = tree["reflecting", "kernels text_token, image_token → trajectory"]
    assert joint.endswith(" = 1, also where a branch is empty: its term is 0")
    assert tree["orthogonality", "residual on text_token"].endswith("summed over text_token and image_token together")
