"""The small batches that the search for counterexamples enumerates."""

import itertools
from fractions import Fraction

import pytest
from hierarchies import quivers
from hierarchies.quivers import CROSS, DM, SHORT, TREE, batch, domain, image, make, modality, token, trajectory

from fibration import Attribute, Gate, residual, uniform
from fibration.language.strata import populated
from fibration.laws.batches.caps import Caps
from fibration.laws.batches.concrete import Concrete, is_balanced
from fibration.laws.batches.search import concretes
from fibration.laws.batches.shapes import regular_maps, small


def shape_of(*edges):
    return make(*((a, b, uniform()) for a, b, *_ in edges)).shape


def partitions(xs):
    if not xs:
        yield []
        return
    for rest in partitions(xs[1:]):
        yield [[xs[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [xs[0], *rest[i]], *rest[i + 1 :]]


def canonical(shape, size, label):
    """The same for two batches that differ in names only."""

    def key(order):
        rows = []
        for s in shape.order:
            seen = {}
            rows.append(tuple(seen.setdefault(label[s][i], len(seen)) if i in label[s] else -1 for i in order))
        return tuple(rows)

    return min(key(order) for order in itertools.permutations(range(size)))


def by_hand(shape, size):
    """All batches of so many tokens, one root element, from partitions of the tokens."""
    found = set()
    strata = list(reversed(shape.order))

    def fill(i, label):
        if i == len(strata):
            found.add(canonical(shape, size, label))
            return
        s = strata[i]
        tokens = sorted({t for f in shape.above(s) for t in label[f.source]})
        for parts in [[tokens]] if s in shape.roots else partitions(tokens):
            own = {t: k for k, part in enumerate(parts) for t in part}
            pairs = itertools.combinations(tokens, 2)
            fine = [label[f.source] for f in shape.above(s)]
            if all(own[a] == own[b] for a, b in pairs for up in fine if a in up and up[a] == up.get(b)):
                fill(i + 1, {**label, s: own})

    for chosen in itertools.product(shape.leaves, repeat=size):
        label = {leaf: {t: t for t in range(size) if chosen[t] == leaf} for leaf in shape.leaves}
        fill(len(shape.leaves), label) if strata[: len(shape.leaves)] == [
            s for s in strata if s in shape.leaves
        ] else None
    return found


def labels(concrete):
    label, i = {s: {} for s in concrete.chain}, 0
    for leaf in concrete.shape.leaves:
        for e in range(concrete.size[leaf]):
            for s in (leaf, *concrete.shape.coarser(leaf)):
                label[s][i] = concrete.below(leaf, e, s)
            i += 1
    return label


@pytest.mark.parametrize("edges", [CROSS, TREE, SHORT, quivers.NESTED], ids=["cross", "tree", "short", "nested"])
def test_every_small_batch_is_enumerated(edges):
    shape = shape_of(*edges)
    for size in (1, 2, 3):
        made = [Concrete(shape, maps) for maps in small(shape, size)]
        assert {canonical(shape, size, labels(c)) for c in made} == by_hand(shape, size)


def test_small_batches_include_commuting_empty_and_unbalanced_ones():
    unbalanced = {(0, 0), (0, 1), (1, 0)}
    found = [Concrete(shape_of(*CROSS), maps) for maps in small(shape_of(*CROSS), 3)]
    cells = [set(zip(c.maps[trajectory, domain], c.maps[trajectory, modality], strict=True)) for c in found]
    assert unbalanced in cells
    trees = [Concrete(shape_of(*TREE), maps) for maps in small(shape_of(*TREE), 2)]
    assert any(c.size[image] == 0 for c in trees)
    assert any(not c.over(image, trajectory, b) and c.size[image] for c in trees for b in range(c.size[trajectory]))
    filled = small(shape_of(*TREE), 3, [populated(image, over=trajectory)])
    assert all(Concrete(shape_of(*TREE), maps).over(image, trajectory, 0) for maps in filled)


def test_every_candidate_batch_meets_the_assumptions():
    h = make(*CROSS, assume=[DM])
    made = list(itertools.islice(concretes(h, []), 200))
    assert all(is_balanced(h, c, domain, modality) for c in made)
    assert any(c.size[domain] == c.size[modality] == 2 for c in made)
    free = itertools.islice(concretes(make(*CROSS), []), 50)
    assert not all(is_balanced(h, c, domain, modality) for c in free)


def test_a_regular_batch_fills_every_cell():
    shape = shape_of(*CROSS)
    c = Concrete(shape, regular_maps(shape, {batch: 1, domain: 2, modality: 3, trajectory: 2, token: 1}))
    assert c.size == {batch: 1, domain: 2, modality: 3, trajectory: 12, token: 12}
    assert all(len(c.over(trajectory, domain, d)) == 6 for d in range(2))
    assert c.describe(domain) == "a domain of 6 trajectories with 1 and 1 and 1 and 1 and 1 and 1 tokens"


def test_a_batch_describes_its_elements_and_parents():
    shape = shape_of(*TREE)
    c = next(Concrete(shape, m) for m in small(shape, 1) if not m[image, trajectory])
    assert c.describe(trajectory) == "a trajectory of 1 text_token and 0 image_tokens"
    assert c.to_dict()["parents"] == {
        "text_token": {"trajectory": [0]}, "image_token": {"trajectory": []}, "trajectory": {"prompt_group": [0]},
    }  # fmt: skip
    crossing = next(Concrete(shape_of(*CROSS), m) for m in small(shape_of(*CROSS), 1))
    assert crossing.to_dict()["parents"]["trajectory"] == {"domain": [0], "modality": [0]}
    assert crossing.describe(batch) == "a batch of 1 domain and 1 modality"


def test_values_of_attributes_lie_in_their_ranges():
    share = Attribute("share", on=token, upper=1)
    level = Attribute("level", on=trajectory, positive=False, lower=-0.5, upper=0.25)
    price = Attribute("price", on=trajectory, lower=40)
    h = make((token, trajectory, uniform()), gates={token: Gate(residual * share * level * price)})
    tried = list(concretes(h, [h.gate(token)], Caps(200)))
    for attribute in (share, level, price):
        found = {v for c in tried for v in c.attributes[attribute]}
        assert len(found) > 1
        assert not any(attribute.is_outside(v) for v in found)
    assert {Fraction(-1, 2), Fraction(1, 4)} <= {v for c in tried for v in c.attributes[level]}
    assert Fraction(1) in {v for c in tried for v in c.attributes[share]}
