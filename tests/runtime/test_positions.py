"""The order in which an index lists tokens and coarser elements: by place, or by given positions."""

import functools

import numpy as np
import pytest
import torch
from hierarchies.edges import hierarchy
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refuses

from fibration import HierarchyIndexError, after, before, exp, position
from fibration.language.atoms import BATCH, Stratum
from fibration.language.report import Report
from fibration.runtime.operator import Operator

EDGES = ("text -> turn", "image -> turn", "turn -> trajectory", "trajectory -> episode", "episode -> batch")
turn, trajectory, episode, tool = map(Stratum, ("turn", "trajectory", "episode", "tool"))


@functools.cache
def reading(*edges, **read):
    """The operator of a hierarchy that weighs tokens by order over what `read` says: `over=of`."""
    h = hierarchy(*edges)
    weights = [exp(-after(1, over=Stratum(s), of=of and Stratum(of))) for s, of in read.items()]
    objective = functools.reduce(lambda o, w: o.weigh(w), weights, h.objective)
    return Operator(h.model_copy(update={"objective": objective}), Report(h, ()), "none", "", {}, None)


CHAIN = reading("token -> trajectory", "trajectory -> episode", "episode -> batch", episode=None)
ROWS = reading("token -> trajectory", "trajectory -> episode", "episode -> batch", trajectory=None)
TOOLS = reading("token -> trajectory", "token -> tool", "trajectory -> batch", "tool -> batch", tool=None)
PAIR = dict(offsets=[0, 3, 5], episode=["e", "e"])


@st.composite
def worlds(draw):
    """Rows of (kept, turn, image) with positions that ascend along each and are unique, and the rows' episodes."""
    n = draw(st.integers(1, 4))
    rows = [
        draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.booleans()), min_size=1, max_size=5))
        for _ in range(n)
    ]
    rows[0][0] = (1, *rows[0][0][1:])
    numbers = draw(st.permutations(range(40)))
    starts = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    places = [sorted(numbers[a:b]) for a, b in zip(starts, starts[1:], strict=False)]
    return rows, places, draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), draw(st.booleans())


@given(worlds())
@settings(deadline=None, max_examples=60)
def test_the_order_of_random_batches_equals_its_definition(world):
    rows, places, episodes, given_ = world
    width = max(map(len, rows))

    def padded(values, nothing):
        return [[*row, *[nothing] * (width - len(row))] for row in values]

    def wide(values):
        return torch.tensor(padded(values, 0))

    op = reading(*EDGES, turn=None, **({"episode": None, "batch": None} if given_ else {}))
    mask = wide([[keep > 0 for keep, _, _ in row] for row in rows]).bool()
    index = op.index(
        mask=mask,
        image=wide([[image for *_, image in row] for row in rows]).bool(),
        turn=padded([[(r, t) for _, t, _ in row] for r, row in enumerate(rows)], (0, 0)),
        episode=episodes,
        **({"positions": wide(places)} if given_ else {}),
    )
    key = (wide(places) if given_ else torch.arange(mask.numel()).view(mask.shape))[mask].tolist()
    over = {"turn": turn} | ({"episode": episode, BATCH: Stratum(BATCH)} if given_ else {})
    for s in over:
        leaves = index.leaves_over(s)
        numbers = np.concatenate([index.tokens_of(leaf).numpy() for leaf in leaves])
        below = np.concatenate([index.parent(leaf, s).numpy() for leaf in leaves])
        for b, mine in enumerate(lists(index.sequence(s, *leaves), len(numbers))):
            assert mine == sorted(np.flatnonzero(below == b).tolist(), key=lambda i: key[numbers[i]])
    first = [
        min(key[n] for leaf in index.leaves for n in index.tokens_of(leaf)[index.parent(leaf, "turn") == t])
        for t in range(index.size["turn"])
    ]
    below = index.parent("turn", "trajectory").numpy()
    for b, mine in enumerate(lists(index.sequence("trajectory", "turn"), len(first))):
        assert mine == sorted(np.flatnonzero(below == b).tolist(), key=first.__getitem__)


def lists(members, n):
    order = np.arange(n) if members.order is None else members.order.numpy()
    assert members.offsets[-1] == n and (members.order is None or not np.array_equal(order, np.arange(n)))
    return [part.tolist() for part in np.split(order, members.offsets[1:-1].numpy())]


def test_whole_rows_need_no_positions():
    index = ROWS.index(offsets=[0, 3, 3, 5], episode=["e", None, "e"])
    assert index.sequence("trajectory", "token").order is None and index.sequence(
        "trajectory", "token"
    ).offsets.tolist() == [0, 3, 5]
    assert not any("_compose" in key or "_places_of" in key for key in index._cache)


def test_positions_may_interleave_rows():
    index = CHAIN.index(**PAIR, positions=[1, 4, 9, 2, 5])
    assert lists(index.sequence("episode", "token"), 5) == [[0, 3, 1, 4, 2]]
    assert lists(index.sequence("episode", "trajectory"), 2) == [[0, 1]]
    swapped = CHAIN.index(**PAIR, positions=[3, 4, 9, 2, 5])
    assert lists(swapped.sequence("episode", "trajectory"), 2) == [[1, 0]]


def test_masked_positions_are_never_read():
    mask = [1, 0, 1, 1, 1]
    index = CHAIN.index(**PAIR, mask=mask, positions=[3, -7, 8, 2, 5])
    assert lists(index.sequence("episode", "token"), 4) == [[2, 0, 3, 1]]


BAD = {
    "a shape": ([0, 1, 2], "the positions have shape [3]"),
    "no integers": ([0.0, 1.0, 2.0, 0.5, 1.0], "the positions have dtype float64"),
    "booleans": ([True] * 5, "the positions have dtype bool"),
    "negative": ([0, 1, 2, -1, 5], "token [3] has the position -1"),
    "too large": (np.array([0, 1, 2, 3, 2**63], np.uint64), "token [4] has the position 9223372036854775808"),
    "falling": ([0, 2, 1, 3, 5], "token [1] has the position 2, and token [2] behind it 1"),
    "twice in a row": ([0, 1, 1, 3, 5], "token [1] has the position 1, and token [2] behind it 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_positions_are_refused(case):
    given_, what = BAD[case]
    required = "whole numbers from 0, of the batch's shape [5]"
    refuses(HierarchyIndexError, lambda: ROWS.index(**PAIR, positions=given_), what=what, required=required)


def test_equal_positions_in_an_element_are_refused():
    refuses(
        HierarchyIndexError, lambda: CHAIN.index(**PAIR, positions=[1, 4, 9, 4, 5]),
        what="token [1] of trajectory 0 and token [3] of trajectory 1 both have the position 4 in episode 'e'",
        required="positions that differ between the tokens of an episode", remedy="number the tokens through",
    )  # fmt: skip
    ROWS.index(**PAIR, positions=[1, 4, 9, 4, 5])  # each row's own order


def test_an_element_in_several_rows_needs_positions():
    refuses(
        HierarchyIndexError, lambda: CHAIN.index(**PAIR),
        what="episode 'e' spans several rows or ranks", required="positions=, of the batch's shape",
        found="tokens in trajectory 0 and trajectory 1; after(1, over=episode) reads the order of tokens",
        remedy="pass positions=..., numbered through all pieces of an episode",
    )  # fmt: skip
    CHAIN.index(offsets=[0, 3, 5], episode=["d", "e"])
    refuses(
        HierarchyIndexError, lambda: TOOLS.index(offsets=[0, 3, 5], tool=["a", "b", "a", "c", "b"]),
        what="tool 'b' spans several rows or ranks", found="trajectory 0 and trajectory 1",
    )  # fmt: skip
    TOOLS.index(offsets=[0, 3, 5], tool=["a", "b", "a", "c", "c"])


def test_order_is_found_in_every_part_of_a_hierarchy():
    h = hierarchy("token -> trajectory", "trajectory -> batch")
    deep = before(position(over=trajectory) * after(2, over=Stratum(BATCH), discount=0.5), over=trajectory)
    read = h.model_copy(update={"objective": h.objective.keep(deep <= 3)}).ordered
    assert {str(a) for a in read} == {
        "before(position(over=trajectory)*after(2, over=batch, discount=0.5), over=trajectory)",
        "after(2, over=batch, discount=0.5)", "position(over=trajectory)",
    }  # fmt: skip
