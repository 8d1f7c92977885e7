"""Calls on a batch over ranks: their results, their traffic, and errors on all ranks."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import check, operator, spec
from thread_ranks import try_on_ranks

from fibration import BatchError, ParameterError, RanksError
from fibration.runtime import devices
from fibration.runtime.calls import CALLS

FIBERPO = operator(spec("fiberpo_domain"))
LENGTHS, GROUPS, DOMAINS = (3, 5, 2, 4), ("g0", "g0", "g1", "g2"), ("math", "math", "code", "math")
X = torch.tensor([0.3, -0.2, 0.1, 0.6, -0.5, 0.2, 0.05, -0.1, 0.9, -0.7, -0.3, 0.4, 0.2, -0.8]).double()
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.5]).double()  # per row
NARROW = {  # so that elements of every level are rolled back and zeroed
    "epsilon": 0.05,
    "C_trajectory": {"+": 0.015, "-": 0.02},
    "C_prompt_group": {"+": 0.0005, "-": 0.115},
    "C_domain": {"+": 0.44, "-": 0.1},
}
WHOLE = [(0, 1, 2, 3)]
SPLIT = [(0, 1), (), (2, 3)]  # rank 1 has nothing


@dataclasses.dataclass
class Mine:
    """What one rank has: arguments of a call."""

    index: object
    now: torch.Tensor
    advantages: torch.Tensor
    tokens: np.ndarray

    @property
    def old(self):
        return torch.zeros_like(self.now)


def part(op, group, rows, **keys):
    """The part of the batch that a rank has: rows of it, which have keys where several ranks have the same."""
    tokens = np.concatenate([np.arange(sum(LENGTHS[:r]), sum(LENGTHS[: r + 1])) for r in rows] or [[]]).astype(int)
    index = op.index(
        offsets=np.cumsum([0, *(LENGTHS[r] for r in rows)]),
        prompt_group=[GROUPS[r] for r in rows],
        domain=[DOMAINS[r] for r in rows],
        group=group,
        **keys,
    )
    return Mine(index, X[tokens], ADVANTAGES[list(rows)], tokens)


def each(call, op=FIBERPO, split=SPLIT, lost=None):
    """`call(rank, its part)` on every rank."""
    return try_on_ranks(len(split), lambda g: call(g.rank, part(op, g, split[g.rank])), lost)


def coefficients(op, mine, parameters=NARROW, **more):
    return op.coefficients(mine.now, mine.old, mine.advantages, mine.index, parameters, **more)


def alone(op=FIBERPO):
    """The whole batch in one process."""
    return part(op, None, WHOLE[0])


def raised(ran):
    """What every rank raised."""
    assert all(isinstance(e, Exception) for e in ran.errors), ran.errors
    return ran.errors


def test_the_batch_has_elements_of_several_regimes():
    metrics = coefficients(FIBERPO, alone()).metrics
    for stratum in ("trajectory", "prompt_group", "domain"):
        for regime in ("rolled_back", "zeroed"):
            assert any(float(metrics[f"{stratum}/{c}/{regime}"]) > 0 for c in "+-"), (stratum, regime)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_shares_of_the_loss_add_up_and_gradients_are_those_of_the_whole_batch(dtype):
    def loss(rank, mine):
        now = mine.now.to(dtype).requires_grad_()
        result = FIBERPO.loss(now, mine.old.to(dtype), mine.advantages.to(dtype), mine.index, NARROW)
        result.loss.backward()
        assert mine.index.gradient_scale == len(SPLIT)  # for gradients that are averaged over ranks
        return result.loss.detach(), now.grad, mine.tokens

    whole = alone()
    expected = coefficients(FIBERPO, dataclasses.replace(whole, now=whole.now.to(dtype)))
    ran = each(loss)
    shares = [share for share, _, _ in ran.results]
    assert all(s.dtype == dtype and s.shape == () for s in shares)
    assert float(sum(shares).double() + expected.objective) == pytest.approx(
        0, abs=1e-6 if dtype == torch.float32 else 1e-15
    )
    assert len(set(map(float, shares))) == 1
    for _, gradient, tokens in ran.results:
        assert torch.equal(gradient, -expected.values[tokens])


def test_every_rank_has_the_objective_and_metrics_of_the_whole_batch():
    whole = coefficients(FIBERPO, alone())
    for result in each(lambda rank, mine: coefficients(FIBERPO, mine)).results:
        assert torch.equal(result.objective, whole.objective)
        assert {k: repr(vars(v)) for k, v in result.metrics.items()} == {
            k: repr(vars(v)) for k, v in whole.metrics.items()
        }


def test_the_traffic_of_a_call_is_one_number_and_one_collective_per_stage():
    def traffic(op, repeat, **more):
        """Of one call on rows that are `repeat` times as long."""

        def work(group):
            rows = SPLIT[group.rank]
            lengths = [LENGTHS[r] * repeat for r in rows]
            given = {"prompt_group": [GROUPS[r] for r in rows], "domain": [DOMAINS[r] for r in rows]}
            index = op.index(offsets=np.cumsum([0, *lengths]), group=group, **given)
            now = torch.full((sum(lengths),), 0.1).double()
            op.coefficients(now, now * 0, ADVANTAGES[list(rows)], index, **more)

        return try_on_ranks(3, work).traffic.sent

    stages = FIBERPO.calls.on(torch.device("cpu")).run.collectives("objective", False)
    held = {"trajectory": 2, "prompt_group": 2, "domain": 2, "batch": 1}
    numbers = [1 + sum(held[n.stratum] for n in stage.values) for stage in stages]
    sent = traffic(FIBERPO, 1, metrics=False)
    word = ("all_gather", 16)
    assert sent == [word, ("all_gather_object", 0), word, *(("all_gather", 8 * n) for n in numbers)]
    assert traffic(FIBERPO, 50, metrics=False) == sent
    assert len(FIBERPO.calls.on(torch.device("cpu")).run.collectives("evaluate", False)) == len(stages)


@pytest.mark.parametrize("budgets", [0.1, {"math": {"+": 0.44, "-": 0.1}, None: 0.2, **dict.fromkeys(range(50), 0.3)}])
def test_ranks_agree_by_a_digest_of_one_size_in_every_call(budgets):
    """What they agree on is sent only if digests differ, and then a second call has the first one's error."""
    parameters = NARROW | {"C_domain": budgets}

    def calls(rank, mine):
        sent, errors = [], []
        for given in (parameters, parameters, parameters | {"epsilon": 0.05 + rank}):
            before = len(mine.index.group.gather.__self__._meeting.traffic.sent)
            try:
                coefficients(FIBERPO, mine, given, metrics=False)
            except RanksError as error:
                errors.append(str(error))
            sent.append(mine.index.group.gather.__self__._meeting.traffic.sent[before:])
        return sent, errors

    def first(rank, mine):
        coefficients(FIBERPO, mine, parameters | {"epsilon": 0.05 + rank}, metrics=False)

    expected = [str(e) for e in raised(each(first))]
    stages = FIBERPO.calls.on(torch.device("cpu")).run.collectives("objective", False)
    for (sent, errors), one in zip(each(calls).results, expected, strict=True):
        assert sent[0] == sent[1] and sent[0][0] == ("all_gather", 16)
        assert [kind for kind, _ in sent[0]] == ["all_gather"] * (1 + len(stages))
        assert sent[2] == [("all_gather", 16), ("all_gather_object", 0)]
        assert errors == [one]


def test_levels_of_leaves_are_those_of_the_rank():
    whole = alone()
    expected = FIBERPO.levels(whole.now, whole.index, NARROW)
    for rank, (found, tokens) in enumerate(
        each(lambda r, m: (FIBERPO.levels(m.now, m.index, NARROW), m.tokens)).results
    ):
        for word in ("residual", "gated"):
            for (stratum, channel), values in getattr(expected, word).items():
                mine = values[tokens] if stratum == "token" else values
                assert torch.equal(getattr(found, word)[stratum, channel], mine), (rank, word, stratum, channel)


def test_gate_and_its_backward_equal_those_of_one_process():
    cotangent = torch.linspace(-1, 1, len(X)).double()

    def both(rank, mine):
        x = mine.now.clone().requires_grad_()
        gated = FIBERPO.gate(x, mine.index, NARROW)
        gated.backward(cotangent[mine.tokens])
        return gated.detach(), x.grad, mine.tokens

    ((gated, slope, _),) = [both(0, alone())]
    assert float(slope.abs().max()) > 0
    for mine, its, tokens in each(both).results:
        assert torch.equal(mine, gated[tokens])
        assert torch.equal(its, slope[tokens])


class TestErrors:
    @pytest.mark.parametrize(("rank", "row"), [(0, "trajectory 1"), (2, "row 1 (trajectory 3)")])
    @pytest.mark.parametrize("value", [float("nan"), float("-inf")])
    def test_a_log_prob_that_is_not_finite_is_an_error_on_all_ranks(self, rank, row, value):
        def call(at, mine):
            if at == rank:
                mine.now[3] = value
            coefficients(FIBERPO, mine, metrics=False)

        for error in raised(each(call)):
            check(
                error,
                BatchError,
                what=f"rank {rank}: log_probs of token [3] of {row} is {value:g}",
                remedy="mask",
            )

    @pytest.mark.parametrize("call", ["gate", "levels"])
    def test_a_log_ratio_that_is_not_finite_is_an_error_on_all_ranks(self, call):
        def work(rank, mine):
            if rank == 2:
                mine.now[0] = float("nan")
            getattr(FIBERPO, call)(mine.now, mine.index, NARROW)

        for error in raised(each(work)):
            check(error, BatchError, what="rank 2: log_ratio of token [0] of row 0 (trajectory 2) is nan")

    def test_an_advantage_that_is_not_finite_is_an_error_on_all_ranks(self):
        def call(rank, mine):
            if rank == 0:
                mine.advantages[1] = float("inf")
            coefficients(FIBERPO, mine)

        for error in raised(each(call)):
            check(error, BatchError, what="rank 0: the advantage of trajectory 1 is inf")

    def test_log_ratios_that_overflow_the_dtype_are_an_error_on_all_ranks(self):
        op = operator(spec("fiberpo_domain"), "c")

        def call(rank, mine):
            mine.now = mine.now.float()
            old = mine.old.float()
            if rank == 2:
                mine.now[1], old[1] = 3e38, -3e38
            op.coefficients(mine.now, old, mine.advantages, mine.index, NARROW)

        for error in raised(each(call, op)):
            check(error, BatchError, what="rank 2: the log ratio of token [1] of row 0 (trajectory 2) is 6e+38")

    def test_a_wrong_shape_on_one_rank_is_an_error_on_all_ranks(self):
        def call(rank, mine):
            coefficients(FIBERPO, replace(mine, now=mine.now[:1]) if rank == 0 else mine)

        for error in raised(each(call)):
            check(error, BatchError, what="rank 0: log_probs has shape [1]", required="[8]")

    def test_parameters_that_differ_between_ranks_are_refused(self):
        ran = each(lambda rank, mine: coefficients(FIBERPO, mine, NARROW | {"epsilon": 0.2 if rank == 2 else 0.1}))
        for error in raised(ran):
            check(
                error, RanksError, what="ranks differ in parameter 'epsilon'", required="the same on every rank",
                found="0.1 on ranks 0 and 1; 0.2 on rank 2",
            )  # fmt: skip

    def test_a_parameter_that_one_rank_refuses_is_an_error_on_all_ranks(self):
        ran = each(lambda rank, mine: coefficients(FIBERPO, mine, NARROW | {"epsilon": -1.0 if rank == 1 else 0.1}))
        for error in raised(ran):
            check(error, ParameterError, what=("rank 1", "epsilon"))

    def test_parameters_per_label_apply_to_the_whole_batch(self):
        by_label = NARROW | {"C_domain": {"math": 0.44, "code": 0.1, "elsewhere": 1.0}}
        expected = coefficients(FIBERPO, alone(), by_label)
        assert not torch.equal(expected.values, coefficients(FIBERPO, alone()).values)
        ran = each(lambda rank, mine: (coefficients(FIBERPO, mine, by_label).values, mine.tokens))
        for values, tokens in ran.results:
            assert torch.equal(values, expected.values[tokens])
        ran = each(lambda rank, mine: coefficients(FIBERPO, mine, NARROW | {"C_domain": {"math": 0.01, "cod": 0.01}}))
        for error in raised(ran):
            check(error, ParameterError, what="no value for the domain 'code'")

    def test_a_parameter_in_the_order_of_elements_is_refused(self):
        ran = each(lambda rank, mine: coefficients(FIBERPO, mine, NARROW | {"C_domain": torch.tensor([0.1, 0.2])}))
        for error in raised(ran):
            check(error, ParameterError, what="'C_domain' is given in the order of elements", remedy="label")

    @pytest.mark.parametrize(
        ("one", "other"),
        [("evaluate", "objective"), ("evaluate", "gate"), ("levels", "gate"), ("gate", "gate_adjoint")],
    )
    def test_ranks_in_different_calls_are_refused(self, one, other):
        def work(rank, mine):
            gated = FIBERPO.gate(mine.now.clone().requires_grad_(), mine.index, NARROW)
            calls = {
                "evaluate": lambda: coefficients(FIBERPO, mine),
                "objective": lambda: coefficients(FIBERPO, mine, metrics=False),
                "gate": lambda: FIBERPO.gate(mine.now, mine.index, NARROW),
                "gate_adjoint": lambda: gated.sum().backward(),
                "levels": lambda: FIBERPO.levels(mine.now, mine.index, NARROW),
            }
            calls[other if rank == 2 else one]()

        for error in raised(each(work)):
            check(
                error, RanksError, what="ranks are in different calls",
                found=f"{CALLS[one]} on ranks 0 and 1; {CALLS[other]} on rank 2",
            )  # fmt: skip

    def test_backends_that_differ_between_ranks_are_refused(self):
        other = operator(spec("fiberpo_domain"), "c")
        for error in raised(each(lambda rank, mine: coefficients(other if rank == 0 else FIBERPO, mine))):
            check(error, RanksError, what="ranks differ in the backend", found="c on rank 0; torch on ranks 1 and 2")

    def test_dtypes_that_differ_between_ranks_are_refused(self):
        def call(rank, mine):
            now = mine.now.float() if rank == 1 else mine.now
            FIBERPO.coefficients(now, torch.zeros_like(now), mine.advantages, mine.index, NARROW)

        for error in raised(each(call)):
            check(error, RanksError, what="ranks differ in the dtype of results", found="float32 on rank 1")

    def test_metrics_that_differ_between_ranks_are_refused(self):
        asked = (True, ["levels"], ["levels"])
        for error in raised(each(lambda rank, mine: coefficients(FIBERPO, mine, metrics=asked[rank]))):
            check(
                error, RanksError, what="ranks differ in the metrics asked for",
                found="all on rank 0; levels on ranks 1 and 2",
            )  # fmt: skip
        asked = (True, True, "tokens")
        for error in raised(each(lambda rank, mine: coefficients(FIBERPO, mine, metrics=asked[rank]))):
            check(error, BatchError, what="rank 2: 'fiberpo_domain' has no metrics called 'tokens'")

    @pytest.mark.parametrize("other", [[(0, 1), (), (2,)], [(0, 1), (), (2, 0)], [(1, 0), (), (2, 3)]])
    def test_indices_that_differ_between_ranks_are_refused(self, other):
        """In how many elements they have, in who lies over whom, or in which of them are longer."""

        def work(group):
            indices = [part(FIBERPO, group, split[group.rank]) for split in (SPLIT, other)]
            coefficients(FIBERPO, indices[group.rank == 0])

        for error in raised(try_on_ranks(3, work)):
            check(error, RanksError, what="ranks differ in the index", found=("2 domain", "on ranks 1 and 2"))

    def test_a_rank_that_runs_out_of_memory_is_an_error_on_all_ranks(self, monkeypatch):
        import fibration.runtime.ranks.shards as module

        error, calls = MemoryError("64 GiB"), []
        mine = module.Shards._mine

        def fails(ranks, values, held):
            if ranks.group.rank == 2 and calls.append(1) is None and len(calls) == 8:
                raise error
            return mine(ranks, values, held)

        monkeypatch.setattr(module.Shards, "_mine", fails)
        ran = each(lambda rank, mine: coefficients(FIBERPO, mine))
        assert len(calls) == 8
        assert ran.errors[2] is error
        for rank in (0, 1):
            check(
                ran.errors[rank],
                RanksError,
                what="rank 2: op.coefficients with metrics failed with MemoryError: 64 GiB",
            )

    def test_a_rank_that_ends_is_an_error_on_the_others(self):
        def call(rank, mine):
            if rank == 1:
                raise KeyboardInterrupt
            coefficients(FIBERPO, mine)

        ran = each(call, lost=TimeoutError("the group's"))
        for rank in (0, 2):
            check(ran.errors[rank], RanksError, what=f"op.coefficients with metrics: rank {rank} could not gather")


class TestPieces:
    """Rows with one key on several ranks are one row."""

    KEYS = (("a", "b"), ("b",), ("c", "b"))

    def each(self, call):
        def work(group):
            rows = [(0, 1), (1,), (2, 1)][group.rank]  # one row is on every rank
            mine = part(FIBERPO, group, rows, trajectory=self.KEYS[group.rank])
            assert mine.index.ranks.cut
            return call(group.rank, mine)

        return try_on_ranks(3, work)

    def test_advantages_per_row_must_agree_between_ranks(self):
        def call(rank, mine):
            mine.advantages[-1] += rank == 1
            coefficients(FIBERPO, mine)

        for error in raised(self.each(call)):
            check(
                error, RanksError, what="ranks have different advantages for the trajectory 'b'",
                required="one advantage per trajectory", found="-0.5 on rank 0 and 0.5 on rank 1",
            )  # fmt: skip

    @pytest.mark.sampled
    @pytest.mark.parametrize("looks", [True, False])
    @pytest.mark.parametrize(("first", "last", "per_token"), [(1, 1, False), (1, 2, False), (1, 2, True)])
    def test_pieces_of_one_token_have_one_advantage_per_row(self, monkeypatch, first, last, per_token, looks):
        """There, advantages per row look like those per token; those are what they are, whatever others say."""
        monkeypatch.setattr(devices, "can_sync", lambda device: looks)
        fiberpo = operator(spec("fiberpo"))

        def call(group):
            index = fiberpo.index(offsets=[[0, 3, 5], [0, 1], [0, 1]][group.rank], trajectory=["x", "y"][: 2 - (group.rank > 0)],
                               group=group)  # fmt: skip
            n = index.shape[0]
            advantages = [torch.tensor([first, 1.0]), torch.tensor([last]), torch.tensor([last])][group.rank].double()
            if per_token and not group.rank:
                advantages = advantages[index.row_tensor()][index.row_of_token]
            x = torch.linspace(-0.3, 0.4, n).double()
            return fiberpo.coefficients(x, torch.zeros_like(x), advantages, index).values

        ran = try_on_ranks(3, call)
        if first == last or per_token:
            assert ran.errors == [None] * 3
            assert torch.cat(ran.results).isfinite().all() and torch.cat(ran.results).any()
        elif looks:
            for error in raised(ran):
                check(error, BatchError, what="rank 1: pieces of one trajectory", found="2 in row 0, and 1 elsewhere")
        else:
            assert ran.results[0][:3].isnan().all() and ran.results[1].isnan().all()

    def test_advantages_that_agree_are_those_of_the_tokens(self):
        def call(rank, mine):
            per_token = mine.advantages[mine.index.row_tensor()][mine.index.row_of_token]
            return coefficients(FIBERPO, mine).values, coefficients(FIBERPO, replace(mine, advantages=per_token)).values

        for one, other in self.each(call).results:
            assert torch.equal(one, other)
            assert float(one.abs().max()) > 0

    @pytest.mark.parametrize("far", [2.0**71, -(2.0**90)])
    def test_terms_too_large_to_be_added_exactly_are_refused(self, far):
        def call(rank, mine):
            if rank == 2:
                mine.now[-1] = far
            coefficients(FIBERPO, mine)

        for error in raised(self.each(call)):
            check(
                error,
                BatchError,
                what="sums tokens of several ranks, and one of their terms is beyond 5.90296e+20",
                remedy="whole rows",
            )

    def test_a_value_that_is_not_finite_is_reported_before_one_that_is_too_large(self):
        def call(rank, mine):
            mine.now[-1] = float("nan") if rank == 1 else 2.0**71
            coefficients(FIBERPO, mine)

        for error in raised(self.each(call)):
            check(error, BatchError, what="rank 1: log_probs of token [4] of row 0 (trajectory 'b') is nan")

    def test_advantages_of_pieces_on_one_rank_must_agree(self):
        def work(group):
            index = FIBERPO.index(
                offsets=[0, 2, 3], prompt_group=["g", "g"], domain=["d", "d"], trajectory=["a", "a"], group=group
            )
            FIBERPO.coefficients(X[:3], X[:3] * 0, torch.tensor([1.0, 2.0]).double(), index)

        for error in raised(try_on_ranks(1, work)):
            check(
                error,
                BatchError,
                what="rank 0: pieces of one trajectory have different advantages",
                required="one per trajectory",
            )
