"""Sums of coarser strata over ranks equal plain sums, however the batch is cut."""

from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
import torch
from support import check
from thread_ranks import on_ranks, try_on_ranks

from fibration import BatchError, RanksError
from fibration.compiler.ir import Input, Push
from fibration.compiler.plan import Collective
from fibration.runtime.ranks.group import as_group
from fibration.runtime.ranks.shards import RankElements, Shards

UNIT = 2.0**-20
TOKENS = Input("x", "token", "log_ratio")
VALUE, OTHER = (Input(word, "trajectory", "advantage") for word in ("value", "other"))
OVER_GROUP = Input("of_group", "prompt_group", "advantage")
SUM, MOST = (Push("token", "expert", TOKENS, reduce) for reduce in ("sum", "max"))
INF, NAN = float("inf"), float("nan")


def spread(size, of, among, seed=0, cut=False):
    """Elements of one stratum dealt to ranks: each to one, or to several; some ranks get none."""
    rng = np.random.default_rng(seed)
    ranks = rng.integers(0, among, of)
    rank_elements = [
        np.flatnonzero((ranks == r) | (cut & (rng.random(of) < 0.5))) if r < among else [] for r in range(size)
    ]
    return RankElements([torch.tensor(h, dtype=torch.int64) for h in rank_elements], of)


def collected(stage, rank_elements, values, labels=None):
    """What every rank gets, where `values(rank)` is what it has, with garbage for what it does not hold; and the run."""

    def work(given):
        ranks = Shards(as_group(given), False, 0, rank_elements, labels or {})
        return ranks.collect(stage, values(given.rank))

    return try_on_ranks(len(next(iter(rank_elements.values())).elements), work)


def only(rank_elements, rank, values):
    """A vector of which a rank knows what it holds."""
    known = torch.full((rank_elements.size,), NAN, dtype=torch.float64)
    known[rank_elements.elements[rank]] = values[rank_elements.elements[rank]]
    return known


@pytest.mark.parametrize(("size", "among"), [(1, 1), (3, 3), (4, 2)])
def test_whole_values_are_collected_from_their_owners(size, among):
    rank_elements = {"trajectory": spread(size, 7, among), "prompt_group": spread(size, 3, among, seed=1)}
    truth = {
        VALUE: torch.randn(7, dtype=torch.float64),
        OTHER: torch.tensor([0.0, -0.0, NAN, INF, -INF, 1e300, 5e-324], dtype=torch.float64),
        OVER_GROUP: torch.randn(3, dtype=torch.float64),
    }
    stage = Collective(tuple(truth))
    ran = collected(stage, rank_elements, lambda r: {n: only(rank_elements[n.stratum], r, v) for n, v in truth.items()})
    for result in ran.results:
        for node, value in truth.items():
            assert result[node].numpy().tobytes() == value.numpy().tobytes()
    numbers = 2 * rank_elements["trajectory"].most + rank_elements["prompt_group"].most
    assert (ran.traffic.tensors, ran.traffic.objects) == ([8 * (1 + numbers)], 0)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sums_and_maxima_of_parts_equal_those_of_the_whole(size):
    rank_elements = spread(size, 6, size, cut=True)
    rng = np.random.default_rng(size)
    whole = rng.integers(-(2**53), 2**53, (size, 6))  # added up, more than a float64 holds
    stage = Collective((), (SUM, MOST), {SUM: UNIT})

    def values(rank):
        v = only(rank_elements, rank, torch.from_numpy(whole[rank].astype(float) * UNIT))
        return {SUM: v, MOST: v}

    ran = collected(stage, {"expert": rank_elements}, values)
    for e in range(6):
        mine = [int(whole[r, e]) for r in range(size) if e in rank_elements.elements[r].tolist()]
        for result in ran.results:
            assert float(result[SUM][e]) == float(Fraction(sum(mine)) * Fraction(UNIT))
            assert float(result[MOST][e]) == max(mine) * UNIT
    assert len({tuple(r[SUM].tolist()) for r in ran.results}) == 1


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 2.0**54 * UNIT, 1e300])
def test_a_part_that_is_not_finite_or_too_large_makes_the_sum_nan(bad):
    rank_elements = {"expert": RankElements([torch.arange(3)] * 2, 3)}
    stage = Collective((), (SUM, MOST), {SUM: UNIT})

    def values(rank):
        v = torch.tensor([1.0, bad if rank else 2.0, 3.0], dtype=torch.float64)
        return {SUM: v, MOST: v}

    for result in collected(stage, rank_elements, values).results:
        np.testing.assert_array_equal(result[SUM], [2, NAN, 6])
        np.testing.assert_array_equal(result[MOST], [1, bad if bad != -INF else 2, 3])


def test_a_sum_does_not_depend_on_the_ranks_of_its_parts():
    rng = np.random.default_rng(0)
    tokens = rng.integers(-(2**29), 2**29, 4000) * UNIT
    found = set()
    for ranks in (1, 2, 7):
        for seed in range(3):
            home = np.random.default_rng(seed).integers(0, ranks, len(tokens))
            parts = [torch.tensor([tokens[home == r].sum()]) for r in range(ranks)]
            rank_elements = {"expert": RankElements([torch.arange(1)] * ranks, 1)}
            ran = collected(Collective((), (SUM,), {SUM: UNIT}), rank_elements, lambda r, parts=parts: {SUM: parts[r]})
            found |= {float(result[SUM]) for result in ran.results}
    assert found == {float(sum(map(Fraction, tokens)))}


def test_ranks_that_share_an_element_agree_on_its_value():
    rank_elements = {
        "trajectory": RankElements([torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)], 3)
    }
    truth = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    ran = collected(Collective((VALUE,)), rank_elements, lambda r: {VALUE: only(rank_elements["trajectory"], r, truth)})
    assert [r[VALUE].tolist() for r in ran.results] == [[1, -2, 3]] * 3


def test_ranks_that_disagree_on_a_value_are_named_on_every_rank():
    rank_elements = {
        "prompt_group": RankElements([torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([1])], 2)
    }
    labels = {"prompt_group": ("g0", "g1")}
    given = [[5.0, NAN], [5.0, 1.0], [NAN, 1.0], [NAN, -1.0]]

    def values(rank):
        return {OVER_GROUP: torch.tensor(given[rank], dtype=torch.float64)}

    for error in collected(Collective((OVER_GROUP,)), rank_elements, values, labels).errors:
        check(
            error, RanksError, what="different advantages for the prompt_group 'g1'",
            required="one advantage per prompt_group", found="1 on rank 1 and -1 on rank 3", remedy="every rank",
        )  # fmt: skip


def test_a_nan_value_is_left_to_the_count_of_values_that_are_not_finite():
    rank_elements = {"trajectory": RankElements([torch.arange(2)] * 2, 2)}
    ran = collected(
        Collective((VALUE,)), rank_elements, lambda r: {VALUE: torch.tensor([r or NAN, 4.0], dtype=torch.float64)}
    )
    for result in ran.results:
        np.testing.assert_array_equal(result[VALUE], [NAN, 4])


def test_a_rank_without_elements_joins():
    rank_elements = {"trajectory": RankElements([torch.tensor([], dtype=torch.int64), torch.arange(2)], 2)}
    ran = collected(Collective((VALUE,)), rank_elements, lambda r: {VALUE: torch.tensor([1.0, 2.0]).double() * r})
    assert [r[VALUE].tolist() for r in ran.results] == [[1, 2]] * 2


def test_inputs_are_not_written_to():
    rank_elements = {"expert": RankElements([torch.arange(2)] * 2, 2)}
    given = [torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double()]
    stage = Collective((), (SUM, MOST), {SUM: 1.0})

    def work(group):
        mine = given[group.rank]
        result = Shards(as_group(group), True, 2, rank_elements, {}).collect(stage, {SUM: mine, MOST: mine})
        result[SUM].zero_()
        result[MOST].zero_()

    on_ranks(2, work)
    assert [g.tolist() for g in given] == [[1, 2], [3, 4]]


class TestFailures:
    """A rank that fails on its way to a collective takes the others along, wherever they wait."""

    HELD: ClassVar = {
        "trajectory": RankElements([torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([2])], 3)
    }
    STAGES = (Collective((VALUE,)), Collective((VALUE, OTHER)))

    def ran(self, fails):
        """Every rank meets twice, unless `fails[rank]` is raised instead of a meeting, whose number it comes with."""

        def work(given):
            ranks = Shards(as_group(given), False, 3, self.HELD, {})
            values = dict.fromkeys((VALUE, OTHER), torch.arange(3).double())

            def call(fails):
                for number, stage in enumerate(self.STAGES):
                    at, error = fails.get(given.rank, (None, None))
                    if at == number:
                        raise error
                    ranks.collect(stage, values)
                return "done"

            for after in ({}, fails):  # a call that goes well, and the next
                result = ranks.run("op.gate", self.STAGES, lambda after=after: call(after), torch.device("cpu"))
            return result

        return try_on_ranks(3, work)

    def test_ranks_without_an_error_continue(self):
        ran = self.ran({})
        assert (ran.results, ran.errors) == (["done"] * 3, [None] * 3)
        assert len(ran.traffic.sent) == 4

    @pytest.mark.parametrize("at", [0, 1])
    @pytest.mark.parametrize("rank", [0, 1, 2])
    def test_an_error_of_one_rank_reaches_all_ranks(self, rank, at):
        error = MemoryError("64 GiB")
        ran = self.ran({rank: (at, error)})
        assert ran.errors[rank] is error
        for other in {0, 1, 2} - {rank}:
            check(ran.errors[other], RanksError, what=f"rank {rank}: op.gate failed with MemoryError: 64 GiB")

    def test_errors_of_two_ranks_in_different_stages_reach_all_ranks(self):
        ran = self.ran({0: (1, MemoryError("later")), 2: (0, BatchError("first"))})
        for raised in ran.errors:
            check(raised, BatchError, what="rank 2: first")

    def test_an_error_that_all_ranks_have_raised_is_not_sent_again(self):
        def work(given):
            rank_elements = {"trajectory": RankElements([torch.arange(1)] * 2, 1)}
            ranks = Shards(as_group(given), False, 3, rank_elements, {})
            values = {VALUE: torch.tensor([float(given.rank)], dtype=torch.float64)}
            ranks.run("op.gate", self.STAGES, lambda: ranks.collect(self.STAGES[0], values), torch.device("cpu"))

        ran = try_on_ranks(2, work)
        assert [type(e) for e in ran.errors] == [RanksError] * 2
        assert len(ran.traffic.sent) == 1
