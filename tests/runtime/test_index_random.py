"""Indices of random trees against their definition."""

import numpy as np
import pytest
from hierarchies.edges import hierarchy, index
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refuses

from fibration import HierarchyIndexError
from fibration.language.atoms import Stratum


@st.composite
def random_trees(draw):
    """A tree of strata, rows beside it, and tokens with their labels by stratum."""
    size = draw(st.integers(1, 6))
    below = {k: draw(st.integers(0, k - 1)) for k in range(1, size + 1)}
    leaves = [k for k in range(size + 1) if k not in below.values()]
    rows = draw(
        st.lists(
            st.lists(
                st.tuples(st.booleans(), st.sampled_from(leaves), st.lists(st.integers(0, 1), min_size=7, max_size=7)),
                max_size=4,
            ),
            min_size=1,
            max_size=4,
        )
    )
    if not any(keep for row in rows for keep, _, _ in row):
        rows.append([(True, leaves[0], [0] * 7)])
    return below, leaves, rows, draw(st.booleans())


@pytest.mark.thorough
@given(random_trees())
@settings(deadline=None, max_examples=150)
def test_the_index_of_a_random_tree_equals_its_definition(world):
    below, leaves, rows, padded = world
    name = "abcdefgh"

    def path(k):
        return [k, *path(below[k])] if k in below else [k]

    h = hierarchy(*(f"{name[k]} -> {name[b]}" for k, b in below.items()), rows=Stratum("row"))
    width = max(map(len, rows))
    slots = [[*row, *[(False, leaves[0], [0] * 7)] * (width - len(row))] for row in rows] if padded else rows
    flat = [t for row in slots for t in row]
    labels = []  # by stratum: an element is what lies below it, and a number
    for keep, leaf, numbers in flat:
        labels.append({name[k]: tuple(numbers[j] for j in path(k)) for k in path(leaf)} if keep else {})
    if not padded and len(flat) == len(rows):
        return  # as many tokens as rows: see below
    kept = [p for p, (keep, _, _) in enumerate(flat) if keep]

    def shaped(values):
        return [values[r * width : (r + 1) * width] for r in range(len(rows))] if padded else values

    given_ = {name[b]: shaped([x.get(name[b]) for x in labels]) for b in set(below.values())}
    if len(leaves) > 1:
        given_ |= {name[k]: shaped([leaf == k for _, leaf, _ in flat]) for k in leaves[:-1]}
    mask = shaped([keep for keep, _, _ in flat])
    i = index(h, mask=mask, **({} if padded else {"offsets": np.cumsum([0, *map(len, rows)])}), **given_)

    assert i.leaves == tuple(s.name for s in h.leaves)
    assert i.positions.tolist() == kept
    row_of = [r for r, row in enumerate(slots) for _ in row]
    for leaf in leaves:
        mine = [p for p in kept if flat[p][1] == leaf]
        assert i.positions_of(name[leaf]).tolist() == mine
        assert i.row_tensor()[i.rows_of_tokens(name[leaf])].tolist() == [row_of[p] for p in mine]
        assert i.row_tensor()[i.parent(name[leaf], "row")].tolist() == [row_of[p] for p in mine]
        for k in path(leaf)[1:]:
            s = name[k]
            there = [i.labels[s][e] for e in i.parent(name[leaf], s).tolist()]
            assert there == [labels[p][s] for p in mine]
            layout = i.layout(s, name[leaf])
            for element, label in enumerate(i.labels[s]):
                a, b = layout.offsets[element : element + 2].tolist()
                over = [p for p in mine if labels[p][s] == label]
                positions = layout.positions
                found = (
                    range(int(layout.starts[element]), int(layout.starts[element]) + b - a)
                    if positions is None
                    else positions[a:b].tolist()
                )
                assert list(found) == over
                numbers = range(a, b) if layout.tokens is None else layout.tokens[a:b].tolist()
                assert [mine[n] for n in numbers] == over
    for k in set(below.values()):
        s = name[k]
        seen = list(dict.fromkeys(labels[p][s] for p in kept if s in labels[p]))
        assert list(i.labels[s]) == seen
        straddles = any(len({row_of[p] for p in kept if labels[p].get(s) == label}) > 1 for label in seen)
        assert (i.rows_of(s) is None) == straddles
        for finer in (f for f in range(8) if f in below and s in [name[x] for x in path(f)[1:]]):
            of = name[finer]
            counts = [
                len(
                    {
                        labels[p][of] if finer not in leaves else p
                        for p in kept
                        if of in labels[p] and labels[p].get(s) == label
                    }
                )
                for label in seen
            ]
            assert i.count(of, s).tolist() == counts


def test_rows_outside_the_hierarchy_may_be_as_many_as_tokens():
    h = hierarchy("text -> turn", "image -> turn", rows=Stratum("row"))
    labels = dict(offsets=[0, 2, 2], image=[1, 0])
    refuses(
        HierarchyIndexError, lambda: index(h, **labels, turn=["a", "b"]),
        what="2 labels for 'turn' may be per token or per row", found="'b' and 'a' for token [1]", remedy="leave the rows",
    )  # fmt: skip
    assert index(h, **labels, turn=["a", "a"]).parents["image", "turn"].tolist() == [0]
    assert index(h, **{**labels, "offsets": [0, 1, 2]}, turn=["a", "b"]).parents["text", "turn"].tolist() == [1]
