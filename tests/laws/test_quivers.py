"""The laws of trees and quivers: right ones are proved, arguments name their steps, and random ones get right verdicts.

Wrong ones are in the files of the laws that refuse them.
"""

import functools
import itertools
import random

import pytest
from hierarchies import quivers
from hierarchies.quivers import (
    MINE,
    batch,
    domain,
    image,
    make,
    mine,
    modality,
    n,
    text,
    token,
    trajectory,
    turn,
)
from oracles.quiver_verdicts import RIGHT, WRONG, confirm, shown, uphold, verdicts
from thorough import some

from fibration import (
    Fibration,
    count,
    uniform,
)
from fibration.language.assumptions import balanced, populated
from fibration.language.strata import Shape

# ---------------------------------------------------------------- what is said


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


# ---------------------------------------------------------------- what is proved, by brute force


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_proved_laws_of_quivers_hold_on_random_batches(name):
    h, rng = RIGHT[name].hierarchy, random.Random(name)
    for made in quivers.legal(h, 12):
        uphold(h, verdicts(name), made, rng)


# ---------------------------------------------------------------- random ones


def random_hierarchy(seed):
    """A tree or a quiver of few strata, with kernels that are right, or one of them bent."""
    rng = random.Random(seed)
    coarse = [batch, domain, modality, trajectory, turn]
    leaves = rng.sample([text, image, token], rng.choice((1, 1, 2)))
    strata, edges = [batch], []
    for s in coarse[1 : rng.randint(2, 5)]:
        below = rng.sample(strata, min(len(strata), rng.choice((1, 1, 1, 2))))
        edges += [(s, t) for t in below]
        strata.append(s)
    above = [s for s in strata if s not in [t for _, t in edges]]
    for leaf in leaves:
        below = rng.sample(above, 1) if rng.random() < 0.6 and leaf != leaves[-1] else above
        edges += [(leaf, t) for t in below]
    shape = Shape(
        tuple(dict.fromkeys(s for e in edges for s in e)), tuple(Fibration(a, b, uniform()) for a, b in edges)
    )

    def measure(s):
        parts = [count(leaf, over=s) for leaf in leaves if leaf in shape.leaves_over(s)]
        return sum(parts[1:], parts[0])

    bent = rng.randrange(len(edges)) if rng.random() < 0.4 else None
    ready = []
    for i, (a, b) in enumerate(edges):
        k = measure(a) / measure(b)
        if i == bent:
            k = rng.choice([1 / n(a, b), k / 2, 1 / measure(b), measure(a) / measure(b) * (1 + k) / 2, k * k])
        ready.append((a, b, k))
    crossed_ones = [
        (u, w)
        for u, w in itertools.combinations(shape.strata, 2)
        if set(shape.finer(u)) & set(shape.finer(w)) and shape.meets(u, w)
        and u not in shape.coarser(w) and w not in shape.coarser(u)
    ]  # fmt: skip
    assume = [balanced(u, w) for u, w in crossed_ones if rng.random() < 0.6]
    assume += [populated(a, over=b) for a, b in edges if rng.random() < 0.15]
    return make(*ready, assume=assume)


SEEDS = some(range(60), 5, 2)


@functools.cache
def of_random(seed):
    h = random_hierarchy(seed)
    return h, mine(h)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
def test_verdicts_on_random_quivers_are_right(seed):
    """Proved laws hold on legal batches. Refuted laws fail on their counterexample."""
    h, found = of_random(seed)
    if found[0].status != "proved":
        return
    rng = random.Random(seed)
    for v in found:
        on_a_batch = v.status == "refuted" and v.counterexample is not None and v.counterexample.concrete is not None
        if on_a_batch and (v.law != "orthogonality" or not h.shape.is_tree):
            confirm(h, v)
    upheld = 0
    for k in range(120):
        made = quivers.batches(h, 1000 * seed + k, tokens=1 + k % 6, even=k % 2 == 0)
        if len(made.leaf) <= 16 and quivers.is_legal(made):
            uphold(h, found, made, rng)
            upheld += 1
            if upheld == 12:
                break


@pytest.mark.thorough
def test_random_quivers_cover_every_law_and_status():
    statuses = {(v.law, v.status) for seed in SEEDS for v in of_random(seed)[1]}
    assert {(law, "proved") for law in MINE} <= statuses
    assert {(law, "refuted") for law in ("reflecting", "coherent", "orthogonality")} <= statuses
