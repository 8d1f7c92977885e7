"""Positions on ranks: the order of tokens of elements that several ranks share, and refusals."""

from fractions import Fraction

import numpy as np
import torch
from hierarchies.edges import hierarchy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import check, refuses
from thread_ranks import try_on_ranks

from fibration import HierarchyIndexError, RanksError, after, exp
from fibration.compiler.ir import Const, Scan, token_input
from fibration.compiler.plan import Collective
from fibration.language.atoms import BATCH, Stratum
from fibration.language.report import Report
from fibration.runtime.operator import Operator
from fibration.runtime.ranks.shards import Pieces

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


def dealt(world, gap, group, op=OP):
    """This rank's tokens as (row, position, turn), and their index; its rows are in another order than their names."""
    mine = [
        (r, gap * i, TURNS[i]) for r, row in enumerate(world) for i, rank in enumerate(row) if int(rank) == group.rank
    ]
    mine.sort(key=lambda t: (t[0] * 7 % 3, t[1]))
    rows = list(dict.fromkeys(r for r, *_ in mine))
    index = op.index(
        offsets=np.cumsum([0, *(sum(t[0] == r for t in mine) for r in rows)]), trajectory=[f"row {r}" for r in rows],
        turn=[f"{r} {k}" for r, _, k in mine], positions=[i for _, i, _ in mine], group=group,
    )  # fmt: skip
    return mine, index


@example(["0110", "21"], 0.5, False)
@given(WORLDS, st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans())
@settings(deadline=None, max_examples=40)
def test_sums_in_order_continue_from_one_piece_to_the_next(world, discount, forward):
    rng = np.random.default_rng(len("".join(world)))
    x = {(r, 2 * i): v for r, row in enumerate(world) for i, v in enumerate(rng.normal(size=len(row)))}
    read = token_input("log_ratio", "token", ("token",))
    node = Scan("token", "trajectory", (read,), Const(discount, BATCH), forward)
    other = Scan("token", "trajectory", (read,), Const(discount, BATCH), not forward)

    def work(group):
        mine, index = dealt(world, 2, group)
        given_ = torch.tensor([x[r, i] for r, i, _ in mine], dtype=torch.float64)
        one = torch.full((1,), discount, dtype=torch.float64)
        stage = Collective((), scans=(other, node))
        return mine, index.ranks.collect(stage, {read: given_, node.discount: one}, index)[node].tolist()

    ran = try_on_ranks(3, work)
    assert not any(ran.errors)
    for mine, found in ran.results:
        for (r, i, _), value in zip(mine, found, strict=True):
            at = i // 2
            chosen = range(at) if forward else range(at + 1, len(world[r]))
            exact = sum(Fraction(discount) ** abs(at - s) * Fraction(x[r, 2 * s]) for s in chosen)
            assert abs(value - exact) <= 1e-15 * len(world[r]) * max((abs(x[r, 2 * s]) for s in chosen), default=0)
    most = max(sum(row.count(str(rank)) for row in world if len(set(row)) > 1) for rank in range(3))
    assert ran.traffic.tensors[-1] == 8 * (1 + 2 * most)  # a number per token in pieces, of the rank that has most


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
        what="trajectory 's' spans several rows or ranks", required="positions=, of the batch's shape",
        found="tokens on rank 0 and rank 2; after(1, over=trajectory", remedy="pass positions=...",
    )  # fmt: skip
    refused(
        HierarchyIndexError, dict(offsets=[0], trajectory=[], turn=[]), {**KEYS, "trajectory": ["r", "r"], "turn": [0, 1, 2]},
        what=("rank 1: ", "trajectory 'r' spans several rows or ranks"), found="tokens in row 0 (trajectory 'r') and row 1 (trajectory 'r')",
    )  # fmt: skip


def test_positions_on_some_ranks_alone_are_refused():
    refused(
        RanksError, {**KEYS, "turn": [0, 1, 2], "positions": [0, 1, 0]}, dict(offsets=[0, 2], trajectory=["s"], turn=[2, 3]),
        what="ranks differ in positions", found="given on rank 0; not given on rank 1",
    )  # fmt: skip


def test_equal_positions_on_two_ranks_are_refused():
    refused(
        HierarchyIndexError, {**KEYS, "turn": [0, 1, 2], "positions": [0, 1, 4]},
        dict(offsets=[0, 2], trajectory=["s"], turn=[2, 3], positions=[3, 4]),
        what="two tokens of trajectory 's' have the position 4", required="differ between the tokens of a trajectory",
        found="one on rank 0, and one on rank 1", remedy="number the tokens through",
    )  # fmt: skip
    refused(
        HierarchyIndexError, {**KEYS, "turn": [0, 1, 2], "positions": [0, 1, 4]},
        dict(offsets=[0, 2], trajectory=["t"], turn=[7, 8], positions=[3, 4]), op=reading((batch, None)),
        what="two tokens of the batch have the position 4",
    )  # fmt: skip


def test_a_position_range_inside_another_is_refused():
    one, other = (
        np.array([[0], [5], [9]]),
        np.array([[0, 0], [3, 8], [1, 1]]),
    )
    refuses(HierarchyIndexError, lambda: Pieces.of([one, other], "trajectory", str), what="the position 8")
