"""Strata as a graph: paths, covers, Möbius numbers; also for shapes too wide or deep for exhaustive search."""

from __future__ import annotations

from fibration import Fibration, Stratum, strata, uniform
from fibration.language.strata import Shape

token, image, trajectory, domain, modality, batch = strata("token image trajectory domain modality batch")


def shape(*edges: tuple[Stratum, Stratum]) -> Shape:
    fibrations = tuple(Fibration(a, b, kernel=uniform()) for a, b in edges)
    return Shape(tuple(dict.fromkeys(s for e in edges for s in e)), fibrations)


CROSSED = shape((token, trajectory), (trajectory, domain), (trajectory, modality), (domain, batch), (modality, batch))
TREE = shape((token, trajectory), (image, trajectory), (trajectory, domain))


def ends(cover: tuple[Fibration, ...]) -> set[Stratum]:
    return {f.source for f in cover}


def test_moebius_numbers_of_a_crossing_alternate() -> None:
    assert CROSSED.moebius(trajectory) == {domain: 1, modality: 1, batch: -1}
    assert CROSSED.moebius(token) == {trajectory: 1}
    assert CROSSED.crossings() == (trajectory,)
    assert CROSSED.crossed() == (domain, modality)
    assert CROSSED.comparable(domain, token)
    assert not CROSSED.comparable(domain, modality)
    assert CROSSED.under_crossings()[0] == batch
    assert CROSSED.meets(domain, modality) == (batch,)
    assert [ends(c) for c in CROSSED.covers(batch)] == [{domain}, {modality}]
    assert [f.target for f in CROSSED.path(token, batch)] == [trajectory, domain, batch]
    assert CROSSED.path(token, token) == ()


def test_a_tree_has_one_cover_per_stratum() -> None:
    assert TREE.moebius(image) == {trajectory: 1}
    assert [ends(c) for c in TREE.covers(trajectory)] == [{token, image}]
    assert TREE.covers(token) == ()
    assert TREE.crossed() == TREE.under_crossings() == ()


def test_a_shortcut_and_its_detour_each_cover() -> None:
    both = shape((token, domain), (token, trajectory), (trajectory, domain))
    assert [ends(c) for c in both.covers(domain)] == [{token}, {trajectory}]
    assert len(both.path(token, domain)) == 1


def test_children_that_overlap_in_part_cover_nothing() -> None:
    a, b, c = strata("a b c")
    overlapping = shape((a, domain), (b, domain), (b, modality), (c, modality), (domain, batch), (modality, batch))
    assert overlapping.covers(batch) == ()


def test_sixty_branches_are_one_cover() -> None:
    leaves = [Stratum(f"leaf_{i}") for i in range(60)]
    (cover,) = shape(*((leaf, batch) for leaf in leaves)).covers(batch)
    assert ends(cover) == set(leaves)


def test_sixty_diamonds_in_a_row_are_handled_without_enumerating_paths() -> None:
    """The shape has 2^60 paths."""
    edges = []
    for i in range(60):
        top, left, right, bottom = (Stratum(name) for name in (f"x{i}", f"l{i}", f"r{i}", f"x{i + 1}"))
        edges += [(top, left), (top, right), (left, bottom), (right, bottom)]
    deep = shape(*edges)
    path = deep.path(Stratum("x0"), Stratum("x60"))
    assert len(path) == 120
    assert all(f.source.name[0] in "xl" for f in path)  # of equals, the one declared first
