"""The order of what ranks have pieces of: which tokens of which rank come next to each other, and what is refused."""

import numpy as np
from hierarchies.edges import hierarchy
from hypothesis import given, settings
from hypothesis import strategies as st
from support import check, refuses
from thread_ranks import on_ranks, try_on_ranks

from fibration import HierarchyIndexError, RanksError, after, exp
from fibration.language.atoms import BATCH, Stratum
from fibration.language.report import Report
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.pieces import Pieces, Runs

EDGES = ("token -> turn", "turn -> trajectory", "trajectory -> batch")
turn, trajectory, batch = map(Stratum, ("turn", "trajectory", BATCH))


def reading(*over_of):
    h = hierarchy(*EDGES)
    objective = h.objective
    for over, of in over_of:
        objective = objective.weigh(exp(-after(1, over=over, of=of)))
    return Operator(h.model_copy(update={"objective": objective}), Report(h, ()), "none", "", {}, None)


OP = reading((trajectory, None), (trajectory, turn))
KEYS = dict(offsets=[0, 2, 3], trajectory=["r", "s"])


def refused(kind, *given_, op=OP, **expected):
    """All ranks raise it, in the same words."""
    errors = try_on_ranks(len(given_), lambda group: op.index(group=group, **given_[group.rank])).errors
    for error in errors:
        check(error, kind, **expected)
        assert str(error) == str(errors[0])


TURNS = (0, 1, 0, 1, 2, 2)  # of the tokens of a row
# A token for every character: its rank, of the tokens of each row in their order.
WORLDS = st.lists(st.text("012", max_size=6), min_size=1, max_size=3).filter(any)


@given(WORLDS, st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_pieces_are_what_no_other_rank_interrupts(world, gap):
    """Rows are cut between any two tokens, and dealt out again; one rank may have several pieces, or none."""
    tokens = [(r, gap * i, TURNS[i], int(rank)) for r, row in enumerate(world) for i, rank in enumerate(row)]

    def work(group):
        mine = [t for t in tokens if t[3] == group.rank]
        mine.sort(key=lambda t: (t[0] * 7 % 3, t[1]))  # rows in another order than their names
        rows = list(dict.fromkeys(r for r, *_ in mine))
        offsets = np.cumsum([0, *(sum(t[0] == r for t in mine) for r in rows)])
        index = OP.index(
            offsets=offsets, trajectory=[f"row {r}" for r in rows], turn=[[f"{r} {k}" for r, _, k, _ in mine]][0],
            positions=[i for _, i, *_ in mine], group=group,
        )  # fmt: skip
        found = index.sequence("trajectory", "token")
        order = np.arange(len(mine)) if found.order is None else found.order.numpy()
        turns = index.sequence("trajectory", "turn")
        turn_order = np.arange(index.size["turn"]) if turns.order is None else turns.order.numpy()
        told = [[index.labels["turn"][i] for i in part] for part in np.split(turn_order, turns.offsets[1:-1].numpy())]
        return index, [mine[i] for i in order], dict(zip(index.labels["trajectory"], told, strict=True))

    found = on_ranks(3, work)
    for rank, (index, ordered, turns) in enumerate(found):
        names = index.labels["trajectory"]
        pieces = index.ranks.pieces.get("trajectory")
        cut = {f"row {r}" for r, row in enumerate(world) if len(set(row)) > 1}
        assert ordered == sorted((t for t in tokens if t[3] == rank), key=lambda t: (names.index(f"row {t[0]}"), t[1]))
        assert turns == {
            f"row {r}": list(dict.fromkeys(f"{r} {TURNS[i]}" for i in range(len(row))))
            for r, row in enumerate(world)
            if row
        }
        assert (pieces is not None) == bool(cut)
        if pieces is not None:
            said = [
                (names[e], r)
                for e, r, n in zip(pieces.element, pieces.rank, pieces.size, strict=True)
                for _ in range(n)
            ]
            assert said == [
                (f"row {r}", k)
                for name in names
                if name in cut
                for r, _, _, k in [t for t in tokens if f"row {t[0]}" == name]
            ]
            again = (pieces.element[1:] == pieces.element[:-1]) & (pieces.rank[1:] == pieces.rank[:-1])
            assert not again.any()
            mine, before = pieces.ends(rank, index.sequence("trajectory", "token").offsets.numpy())
            for k, b in zip(mine, before, strict=True):
                there = ordered[b : b + pieces.size[k]]
                assert len(there) == pieces.size[k] and {f"row {r}" for r, *_ in there} == {names[pieces.element[k]]}


def test_whole_rows_send_nothing_for_order():
    def traffic(**more):
        given_ = [
            {**KEYS, "turn": [0, 1, 2], **more},
            dict(offsets=[0, 2], trajectory=["t"], turn=[3, 4], **({"positions": [5, 6]} if more else {})),
        ]
        ran = try_on_ranks(2, lambda group: OP.index(group=group, **given_[group.rank]))
        assert not any(ran.errors)
        return ran.traffic.objects

    assert traffic() == traffic(positions=[0, 1, 0]) == 1


def test_rows_in_pieces_need_positions():
    one, other = {**KEYS, "turn": [0, 1, 2]}, dict(offsets=[0, 2], trajectory=["s"], turn=[2, 3])
    refused(
        HierarchyIndexError, one, dict(offsets=[0], trajectory=[], turn=[]), other,
        what="trajectory 's' comes in pieces", required="positions=, of the batch's shape",
        found="tokens on rank 0 and rank 2, in an order that after(1, over=trajectory", remedy="pass positions=...",
    )  # fmt: skip
    refused(
        HierarchyIndexError, dict(offsets=[0], trajectory=[], turn=[]), {**KEYS, "trajectory": ["r", "r"], "turn": [0, 1, 2]},
        what=("rank 1: ", "trajectory 'r' comes in pieces"), found="tokens in row 0 (trajectory 'r') and row 1 (trajectory 'r')",
    )  # fmt: skip


def test_positions_on_some_ranks_alone():
    refused(
        RanksError, {**KEYS, "turn": [0, 1, 2], "positions": [0, 1, 0]}, dict(offsets=[0, 2], trajectory=["s"], turn=[2, 3]),
        what="ranks differ in positions", found="given on rank 0; not given on rank 1",
    )  # fmt: skip


def test_positions_that_two_ranks_have():
    refused(
        HierarchyIndexError, {**KEYS, "turn": [0, 1, 2], "positions": [0, 1, 4]},
        dict(offsets=[0, 2], trajectory=["s"], turn=[2, 3], positions=[3, 4]),
        what="two tokens of trajectory 's' have the position 4", required="differ between the tokens of a trajectory",
        found="one on rank 0, and one on rank 1", remedy="count them through",
    )  # fmt: skip
    refused(
        HierarchyIndexError, {**KEYS, "turn": [0, 1, 2], "positions": [0, 1, 4]},
        dict(offsets=[0, 2], trajectory=["t"], turn=[7, 8], positions=[3, 4]), op=reading((batch, None)),
        what="two tokens of the batch have the position 4",
    )  # fmt: skip


def test_a_run_inside_another():
    one, other = (
        Runs(np.array([0]), np.array([5]), np.array([9])),
        Runs(np.array([0, 0]), np.array([3, 8]), np.array([1, 1])),
    )
    refuses(HierarchyIndexError, lambda: Pieces.of([one, other], "trajectory", str), what="the position 8")
