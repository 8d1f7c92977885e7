"""Sums of coarser strata over ranks equal plain sums, however the batch is cut."""

from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
import torch
from support import check
from thread_ranks import try_on_ranks

from fibration import RanksError
from fibration.compiler.ir import Input, Push
from fibration.compiler.plan import Collective
from fibration.runtime.ranks.group import as_group
from fibration.runtime.ranks.shards import RankElements, Shards

UNIT = 2.0**-20
TOKENS = Input("x", "token", "log_ratio")
VALUE, OTHER = (Input(word, "trajectory", "advantage") for word in ("value", "other"))
SUM, MOST = (Push("token", "expert", TOKENS, reduce) for reduce in ("sum", "max"))
INF, NAN = float("inf"), float("nan")


def spread(size, of):
    """Elements of one stratum dealt to ranks: each to one, or to several."""
    rng = np.random.default_rng(0)
    ranks = rng.integers(0, size, of)
    rank_elements = [np.flatnonzero((ranks == r) | (rng.random(of) < 0.5)) for r in range(size)]
    return RankElements([torch.tensor(h, dtype=torch.int64) for h in rank_elements], of)


def collected(stage, rank_elements, values):
    """What every rank gets, where `values(rank)` is what it has, with garbage for what it does not hold; and the run."""

    def work(given):
        ranks = Shards(as_group(given), False, 0, rank_elements, {})
        return ranks.collect(stage, values(given.rank))

    return try_on_ranks(len(next(iter(rank_elements.values())).elements), work)


def only(rank_elements, rank, values):
    """A vector of which a rank knows what it holds."""
    known = torch.full((rank_elements.size,), NAN, dtype=torch.float64)
    known[rank_elements.elements[rank]] = values[rank_elements.elements[rank]]
    return known


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sums_and_maxima_of_parts_equal_those_of_the_whole(size):
    rank_elements = spread(size, 6)
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

    @pytest.mark.parametrize("at", [0, 1])
    @pytest.mark.parametrize("rank", [0, 1, 2])
    def test_an_error_of_one_rank_reaches_all_ranks(self, rank, at):
        error = MemoryError("64 GiB")
        ran = self.ran({rank: (at, error)})
        assert ran.errors[rank] is error
        for other in {0, 1, 2} - {rank}:
            check(ran.errors[other], RanksError, what=f"rank {rank}: op.gate failed with MemoryError: 64 GiB")

    def test_an_error_that_all_ranks_have_raised_is_not_sent_again(self):
        def work(given):
            rank_elements = {"trajectory": RankElements([torch.arange(1)] * 2, 1)}
            ranks = Shards(as_group(given), False, 3, rank_elements, {})
            values = {VALUE: torch.tensor([float(given.rank)], dtype=torch.float64)}
            ranks.run("op.gate", self.STAGES, lambda: ranks.collect(self.STAGES[0], values), torch.device("cpu"))

        ran = try_on_ranks(2, work)
        assert [type(e) for e in ran.errors] == [RanksError] * 2
        assert len(ran.traffic.sent) == 1
