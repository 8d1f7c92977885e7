"""The factor of a trainer's loss is measured: restated losses pass, and each with one wrong factor is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import on_ranks, try_on_ranks
from torch import Tensor

from fibration import TrainerError
from fibration.trainers.scale import Scale, in_words

B, T, K = 6, 7, 3  # rows and tokens of a micro-batch, micro-batches of a window
FACTOR = 1 / 37 / K


def micro_batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, coefficients of both signs, and a mask with a row that has nothing; NaN and zeros under it."""
    make = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, T, generator=make) < 0.7
    mask[2] = False
    log_probs = torch.randn(B, T, generator=make, dtype=dtype).requires_grad_()
    return log_probs, torch.randn(B, T, generator=make, dtype=dtype) * mask, mask


def clipped(log_probs: Tensor, advantages: Tensor, mask: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """The sum over tokens of a clipped loss at ratio 1, where both branches tie, with a KL beside it."""
    a = advantages.unsqueeze(1) if advantages.ndim == 1 else advantages
    ratio = torch.exp(log_probs - log_probs.detach())
    per_token = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) * weights + 0.04 * (log_probs.exp() - log_probs - 1)
    return (per_token * mask).sum()


def window(scale: Scale, made: float = FACTOR, dtype: torch.dtype = torch.float32, **more: Any) -> None:
    for k in range(K):
        log_probs, c, mask = micro_batch(k, dtype)
        (clipped(log_probs, scale.expects(c, FACTOR, mask, dtype), mask, **more) * made).backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_loss_of_the_known_scale_passes(dtype):
    scale = Scale("the loss")
    window(scale, dtype=dtype, weights=torch.ones(B, T, dtype=dtype))
    scale.checked()


@pytest.mark.parametrize("shape", [(B,), (B, 1)])
@pytest.mark.parametrize("off", [1.0, 0.5])
def test_advantages_per_row_pass_and_a_wrong_factor_does_not(shape, off):
    scale = Scale("the loss")
    log_probs, c, mask = micro_batch(0)
    (clipped(log_probs, scale.expects(c[:, 0].reshape(shape), FACTOR, mask), mask) * FACTOR * off).backward()
    if off == 1:
        scale.checked()
    else:
        with pytest.raises(TrainerError, match="1/2 of it on every token"):
            scale.checked()


def test_factors_may_differ_from_token_to_token():
    log_probs, c, mask = micro_batch(0)
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    for expected, passes in ((1 / lengths, True), (1 / lengths.float().mean(), False)):
        scale = Scale("the loss")
        clipped(log_probs, scale.expects(c, expected, mask), mask, weights=1 / lengths).backward()
        if passes:
            scale.checked()
        else:
            with pytest.raises(TrainerError, match=r"found: +between"):
                scale.checked()


@pytest.mark.parametrize(
    ("off", "says"),
    [
        (1 / K, "1/3 of it on every token\n  fix:      advantages are divided by the accumulation steps, 3: undo that"),
        (K, "3 of it on every token\n  fix:      advantages are multiplied by the accumulation steps, 3: undo that"),
        (0.5, "1/2 of it on every token\n  fix:      advantages are divided by the ranks, 2: undo that"),
        (-1, "-1 of it on every token\n  fix:      look for"),
        (3 / 4, "3/4 of it"),
        (37 / 36.9, "1.00271"),
        (1 + 1e-6, "1.000001 of it"),
        (0, "0 of it"),
        (float("nan"), "nan of it"),
    ],
)
def test_a_wrong_factor_is_an_error_that_names_the_factor(off, says):
    scale = Scale("TRL's loss", counts={"accumulation steps": K, "ranks": 2})
    window(scale, FACTOR * off)
    with pytest.raises(TrainerError) as caught:
        scale.checked()
    assert says in str(caught.value)


def test_bfloat16_may_differ_by_rounding_and_not_by_a_factor():
    for off, passes in ((1.01, True), (1.06, False), (16 / 15, False)):
        scale = Scale("the loss")
        window(scale, FACTOR * off, torch.bfloat16)
        if passes:
            scale.checked()
        else:
            with pytest.raises(TrainerError):
                scale.checked()


def test_a_token_without_a_gradient_is_found():
    log_probs, c, mask = micro_batch(0)
    kept = torch.ones(B, T)
    row, token = mask.nonzero()[3].tolist()
    kept[row, token] = 0
    scale = Scale("the loss")
    clipped(log_probs, scale.expects(c, 1.0, mask), mask, weights=kept).backward()
    with pytest.raises(TrainerError, match="between 0 and 1 of it"):
        scale.checked()


def test_a_gradient_scaler_is_part_of_what_is_expected():
    for expected, passes in ((65536 * FACTOR, True), (FACTOR, False)):
        scaler = torch.amp.GradScaler("cpu", init_scale=65536)
        scale = Scale("the loss")
        log_probs, c, mask = micro_batch(0)
        scaler.scale(clipped(log_probs, scale.expects(c, expected, mask), mask) * FACTOR).backward()
        if passes:
            scale.checked()
        else:
            with pytest.raises(TrainerError, match=r"found: +65536 of it"):
                scale.checked()


@pytest.mark.parametrize("use", [Tensor.detach, lambda a: a.detach().clone().requires_grad_()])
def test_advantages_that_are_not_used_are_an_error(use):
    scale = Scale("the loss")
    for k in range(K):
        log_probs, c, mask = micro_batch(k)
        handed = scale.expects(c, FACTOR, mask)
        (clipped(log_probs, use(handed) if k == 1 else handed, mask) * FACTOR).backward()
    with pytest.raises(TrainerError, match="the advantages of 1 of 3 micro-batches got no gradient"):
        scale.checked()


def test_an_interrupted_window_is_forgotten():
    scale = Scale("the loss")
    _, c, mask = micro_batch(0)
    scale.expects(c, FACTOR, mask)  # and no backward pass
    scale.begin()
    window(scale)
    scale.checked()
    scale.expects(c, FACTOR, mask)
    window(scale)
    with pytest.raises(TrainerError, match="the advantages of 1 of 4"):
        scale.checked()


def test_the_check_ends_after_the_given_number_of_windows():
    scale = Scale("the loss", windows=2)
    for _ in range(2):
        window(scale)
        scale.checked()
    _, c, mask = micro_batch(0)
    assert scale.expects(c, FACTOR, mask) is c
    window(scale, FACTOR * 5)
    scale.checked()


def test_the_check_leaves_the_gradient_of_log_probs_as_it_was():
    log_probs, c, mask = micro_batch(0)
    clipped(log_probs, c, mask).backward()
    plain, log_probs.grad = log_probs.grad, None
    clipped(log_probs, Scale("the loss").expects(c, 1.0, mask), mask).backward()
    assert torch.equal(log_probs.grad, plain)


def test_all_ranks_raise_the_error_that_one_rank_finds():
    """Of which one has nothing that counts, whose trainer left its backward out."""

    def work(group: Any, wrong: int | None) -> None:
        scale = Scale("the loss")
        log_probs, c, mask = micro_batch(group.rank)
        if group.rank == 2:
            mask = torch.zeros_like(mask)
        loss = clipped(log_probs, scale.expects(c, FACTOR, mask), mask) * FACTOR
        if group.rank != 2:
            (loss * (0.5 if group.rank == wrong else 1)).backward()
        scale.checked(group)

    on_ranks(3, lambda group: work(group, None))
    ran = try_on_ranks(3, lambda group: work(group, 1))
    assert all(isinstance(error, TrainerError) for error in ran.errors)
    assert "rank 1: the loss scales advantages" in str(ran.errors[0]) and "1/2 of it" in str(ran.errors[2])


@pytest.mark.parametrize(
    ("ratio", "word"), [(1 / 3, "1/3"), (2.0, "2"), (0.75, "3/4"), (-0.5, "-1/2"), (0.3712, "0.3712"), (0.0, "0")]
)
def test_a_ratio_is_written_as_a_fraction_or_a_number(ratio, word):
    assert in_words(ratio, 1e-6) == word
