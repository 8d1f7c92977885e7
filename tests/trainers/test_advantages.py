"""Coefficients as advantages: the trainer's own loss then has the gradient of the whole step, off policy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import reductions
import support
import torch
from reductions import ROWS, B, Batch, Reduction, T, parted, step
from thread_ranks import on_ranks
from torch import Tensor

from fibration.errors import TrainerError
from fibration.trainers.advantages import coefficients_as_advantages
from fibration.trainers.window import Window

TOKENS = int(step().mask.sum())
OWN = step().mask.sum(1)  # unmasked tokens of each row
EXACT = 1e-13
WRONG = 1e-3


def by(reduction: str, **counts: Any) -> Callable[[Batch], dict[str, Any]]:
    """For rows or a micro-batch of the step; what is per row is given for all of them."""
    return lambda part: {
        "reduction": reduction,
        **{name: given[part.rows] if isinstance(given, Tensor) else given for name, given in counts.items()},
    }


# What is divided by is of the whole step; where a trainer adds 1e-8 to it, it is part of it.
WHOLE: dict[Reduction, Callable[[Batch], dict[str, Any]]] = {
    reductions.skyrl: by("sum"),
    reductions.openrlhf: by("token-mean", count=TOKENS),
    reductions.openrlhf_rows: by("sequence-mean", count=int((OWN > 0).sum()), lengths=OWN + 1e-8),
    reductions.slime: by("sequence-mean", count=B // 2, lengths=reductions.rollout_lengths()),
    reductions.slime_tokens: by("token-mean", count=int(OWN.clamp(min=1).sum())),
    reductions.areal: by("token-mean", count=TOKENS),
    reductions.nemo: by("token-mean", count=TOKENS + 1e-8),
    reductions.nemo_rows: by("sequence-mean", count=B + 1e-8, lengths=OWN + 1e-8),
    reductions.constant: by("sequence-mean", count=B, lengths=512),
}
# It is of each micro-batch, and nothing makes up for their number, nor for that of the ranks.
EACH: dict[Reduction, Callable[[Batch], dict[str, Any]]] = {
    reductions.per_micro_batch: lambda part: {"reduction": "token-mean", "count": part.mask.sum()},
    reductions.rows_per_micro_batch: lambda part: {"reduction": "sequence-mean", "count": len(part.rows)},
}


@functools.cache
def values(ranks: int, weights: bool = False) -> Tensor:
    """Coefficients [B, T], computed from all rows of the step on all ranks."""
    found = torch.full((B, T), torch.nan, dtype=torch.float64)

    def work(group: Any) -> None:
        rows = torch.cat(parted(ranks)[group.rank])
        part = step().take(rows)
        window = Window(
            reductions.operator(),
            part.mask,
            part.old,
            part.advantages,
            part.labels,
            weights=part.weights if weights else None,
            group=group,
            parameters=reductions.budgets(),
        )
        found[rows] = window.coefficients(part.new, metrics=False).values

    on_ranks(ranks, work)
    return found


def placed(c: Tensor, pieces: list[Tensor], options: Callable[[Batch], dict[str, Any]], **more: int) -> Tensor:
    """Advantages [B, T], from what is asked for with the coefficients of some rows at a time."""
    found = torch.zeros_like(c)
    for rows in pieces:
        part = step().take(rows)
        if part.mask.any():
            found[rows] = coefficients_as_advantages(c[rows], part.mask, **options(part), **more)
    return found


def error(
    reduce: Reduction, advantages: Tensor, ranks: int, weights: bool = False, behind: Tensor | None = None
) -> float:
    wanted = reductions.wanted(weights)
    found = reductions.gradient(reduce, step(), advantages, ranks, behind)
    return float((found - wanted).norm() / wanted.norm())


def on_each(ranks: int) -> list[Tensor]:
    return [torch.cat(mine) for mine in parted(ranks)]


def micro_batches(ranks: int) -> list[Tensor]:
    return [rows for mine in parted(ranks) for rows in mine]


def called(reduce: Reduction) -> str:
    return reduce.__name__


@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("reduce", WHOLE, ids=called)
def test_a_division_by_counts_of_the_step_is_undone(reduce, ranks):
    for pieces in (on_each(ranks), micro_batches(ranks)):
        a = placed(values(ranks), pieces, WHOLE[reduce])
        assert error(reduce, a, ranks) <= EXACT


@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("reduce", EACH, ids=called)
def test_a_division_by_counts_of_each_micro_batch_is_undone(reduce, ranks):
    divisors = {"accumulation": len(parted(ranks)[0]), "ranks": ranks}
    a = placed(values(ranks), micro_batches(ranks), EACH[reduce], **divisors)
    assert error(reduce, a, ranks) <= EXACT
    for left_on in divisors:
        if divisors[left_on] > 1:
            a = placed(values(ranks), micro_batches(ranks), EACH[reduce], **{**divisors, left_on: 1})
            assert error(reduce, a, ranks) > WRONG


@pytest.mark.parametrize("reduce", WHOLE, ids=called)
def test_weights_multiply_the_advantages_and_not_the_loss(reduce):
    a = placed(values(2, weights=True), on_each(2), WHOLE[reduce])
    assert error(reduce, a, 2, weights=True) <= EXACT
    behind = placed(values(2), on_each(2), WHOLE[reduce])
    assert error(reduce, behind, 2, weights=True, behind=step().weights) > WRONG


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("reduce", "name", "bound"),
    [
        (reductions.openrlhf, "dapo", EXACT),
        (reductions.areal, "dapo", EXACT),
        (reductions.nemo, "dapo", 1e-9),  # whose own counts are 1e-8 larger
        (reductions.openrlhf_rows, "grpo", 1e-8),
    ],
)
def test_the_trainers_clipped_loss_of_these_advantages_has_the_hierarchys_gradient(reduce, name, bound, ranks):
    """Neither the gradient off policy, nor the advantages of fresh rows."""
    s, op = step(), support.operator(support.spec(name), "c")
    window = Window(op, s.mask, s.old, s.advantages, {}, parameters={"epsilon_low": 0.2, "epsilon_high": 0.28})
    own = s.advantages[:, None].expand(B, T).where(s.mask, 0)
    fresh = placed(window.coefficients(None).values, on_each(ranks), WHOLE[reduce])
    torch.testing.assert_close(fresh, own, rtol=1e-8, atol=0)
    a = placed(window.coefficients(s.new).values, on_each(ranks), WHOLE[reduce])
    found = reductions.gradient(reduce, s, a, ranks)
    theirs = reductions.gradient(reduce, s, own, ranks, old=s.old)
    assert float((found - theirs).norm() / theirs.norm()) <= bound
    assert (a[s.mask] == 0).any() and not torch.allclose(a, own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [torch.bool, torch.int64, torch.float32])
def test_the_result_has_the_dtype_of_the_coefficients_no_graph_and_0_under_the_mask(dtype, mask):
    c = values(1).to(dtype, copy=True).requires_grad_()
    exact = values(1) * TOKENS
    for count in (TOKENS, float(TOKENS), torch.tensor(TOKENS), torch.tensor([float(TOKENS)])):
        a = coefficients_as_advantages(c, step().mask.to(mask), reduction="token-mean", count=count)
        assert (a.shape, a.dtype, a.requires_grad) == (c.shape, dtype, False)
        assert (a[~step().mask] == 0).all()
        torch.testing.assert_close(a.double(), exact, rtol=1e-6, atol=0)
    packed = coefficients_as_advantages(c[step().mask], torch.ones(TOKENS), reduction="token-mean", count=TOKENS)
    assert torch.equal(packed, a[step().mask])


def test_the_length_of_a_row_without_tokens_is_ignored():
    lengths = OWN.double()
    for nothing in (0.0, -1.0, torch.nan):
        lengths[OWN == 0] = nothing
        a = coefficients_as_advantages(values(1), step().mask, reduction="sequence-mean", count=B, lengths=lengths)
        assert torch.equal(a, coefficients_as_advantages(values(1), step().mask, reduction="sequence-mean", count=B))


def refused(c: Any = None, mask: Any = None, expected: Any = (), **options: Any) -> None:
    c, mask = values(1) if c is None else c, step().mask if mask is None else mask
    support.refuses(TrainerError, lambda: coefficients_as_advantages(c, mask, **options), **dict(expected))


@pytest.mark.parametrize("count", [0, -3, 0.0, float("nan"), float("inf"), torch.tensor(0)])
def test_counts_that_cannot_be_undone_are_refused(count):
    refused(reduction="token-mean", count=count, expected={"what": "the tokens", "required": "positive"})
    refused(reduction="sequence-mean", count=count, expected={"what": "the rows", "required": "positive"})


def test_an_empty_micro_batch_is_refused():
    rows = ROWS[5:6]
    part = step().take(rows)
    refused(
        values(1)[rows],
        part.mask,
        reduction="token-mean",
        count=part.mask.sum(),
        expected={"what": "the tokens that a loss is divided by are 0", "remedy": "leave out a micro-batch"},
    )


@pytest.mark.parametrize("wrong", [0.0, -2.0, float("nan"), float("inf")])
def test_a_row_with_an_invalid_length_is_named(wrong):
    lengths = OWN.double()
    lengths[7] = wrong
    options = {"reduction": "sequence-mean", "count": B}
    refused(**options, lengths=lengths, expected={"what": "row 7", "required": "positive"})
    refused(**options, lengths=wrong, expected={"what": "row 0", "required": "positive"})
    refused(**options, lengths=lengths[:-1], expected={"what": "[23]", "required": "one per row"})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"reduction": "mean"}, "reduction='mean'"),
        ({"reduction": "sum", "count": 3}, "no count"),
        ({"reduction": "sum", "lengths": 3}, "no lengths"),
        ({"reduction": "token-mean", "count": 3, "lengths": 3}, "no lengths"),
        ({"reduction": "token-mean"}, "needs a count"),
        ({"reduction": "sequence-mean"}, "needs a count"),
        ({"reduction": "token-mean", "count": torch.ones(B)}, "24 counts"),
        ({"reduction": "sum", "accumulation": 0}, "accumulation=0"),
        ({"reduction": "sum", "accumulation": 2.0}, "accumulation=2.0"),
        ({"reduction": "sum", "ranks": -1}, "ranks=-1"),
        ({"reduction": "sum", "ranks": True}, "ranks=True"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_options_that_a_reduction_does_not_take_are_refused(options, what):
    refused(**options, expected={"what": what})


def test_a_mask_that_does_not_fit_the_coefficients_is_refused():
    s, c = step(), values(1)
    refused(mask=s.mask[:, 1:], reduction="sum", expected={"what": "[24, 9]"})
    refused(mask=s.weights.where(s.mask, 0), reduction="sum", expected={"what": "a mask with", "remedy": "weights"})
    shifted = s.mask.roll(-1, 1)
    first = (s.mask & ~shifted & (c != 0)).nonzero()[0].tolist()
    refused(mask=shifted, reduction="sum", expected={"what": f"token {first} is masked", "remedy": "shifted"})
    refused(
        c[s.mask], torch.ones(TOKENS), reduction="sequence-mean", count=B, expected={"what": "packed", "remedy": "pad"}
    )
