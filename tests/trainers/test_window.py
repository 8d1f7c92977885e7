"""A step's rows of one rank: the gradient that trainers get is that of `op.loss` on the whole step, off policy."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import support
import torch
import training
from thread_ranks import on_ranks
from torch import Tensor

from fibration.runtime.operator import Operator
from fibration.trainers.window import Window

B, T = 24, 10
NAN = float("nan")
LABELS: dict[str, list[Any]] = {
    "prompt_group": [f"p{i // 4}" for i in range(B)],
    "domain": ["math" if i < 8 else "code" if i < 16 else "maps" for i in range(B)],
}


@functools.cache
def step(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A step off policy; two rows without tokens, a mask with holes, and NaN wherever it is False."""
    make = torch.Generator().manual_seed(3)
    mask = torch.rand(B, T, generator=make) < 0.8
    mask[5] = mask[22] = False
    old = torch.randn(B, T, generator=make, dtype=torch.float64) - 2
    per_row = torch.randn(B, 1, generator=make, dtype=torch.float64)
    new = old + 0.3 * torch.randn(B, T, generator=make, dtype=torch.float64) + 0.3 * per_row
    advantages = torch.randn(B, generator=make, dtype=torch.float64)
    advantages[[5, 22]] = NAN
    weights = 0.5 + torch.rand(B, T, generator=make, dtype=torch.float64)
    found = {"old": old, "new": new, "advantages": advantages, "weights": weights}
    found = {k: v.to(dtype) for k, v in found.items()}
    for name in ("old", "new", "weights"):
        found[name] = found[name].where(mask, NAN)
    return {**found, "mask": mask}


def operator(name: str = "fiberpo_domain", backend: str = "c") -> Operator:
    return support.operator(support.spec(name), backend)


@functools.cache
def budgets() -> dict[str, Any]:
    """With which elements of every level are rolled back and zeroed on both channels."""
    s = step()
    op = operator()
    index = op.index(mask=s["mask"], **LABELS)
    chosen = training.narrow(op, index, s["new"] - s["old"])
    training.every_regime(op.coefficients(s["new"], s["old"], s["advantages"], index, chosen).metrics)
    return chosen


def gradient(op: Operator, s: dict[str, Tensor], advantages: Tensor, parameters: Any = None, **labels: Any) -> Tensor:
    """Minus that of `op.loss` on the whole step."""
    new = s["new"].clone().requires_grad_()
    labels = labels or LABELS
    op.loss(new, s["old"], advantages, op.index(mask=s["mask"], **labels), parameters).loss.backward()
    assert new.grad is not None
    return -new.grad


def shares(values: Any, ranks: int, rank: int) -> Any:
    """A rank's rows: every `ranks`-th, so that prompt groups and domains lie on all of them."""
    return values[rank::ranks]


def spread(ranks: int, work: Any, rows: Any = shares) -> list[Any]:
    """`work(window, its part of the step)` on every rank."""
    s = step()

    def run(group: Any) -> Any:
        mine = {name: rows(t, ranks, group.rank) for name, t in s.items()}
        labels = {name: rows(given, ranks, group.rank) for name, given in LABELS.items()}
        window = Window(
            operator(), mine["mask"], mine["old"], mine["advantages"], labels, group=group, parameters=budgets()
        )
        return work(window, mine)

    return on_ranks(ranks, run)


@pytest.mark.parametrize("form", ["[B]", "[B, 1]", "[B, T]"])
@pytest.mark.parametrize("mask", [torch.bool, torch.int64, torch.float32])
def test_coefficients_are_the_gradient_of_the_loss(form, mask):
    s, op = step(), operator()
    advantages = s["advantages"].reshape({"[B]": (B,)}.get(form, (B, 1)))
    if form == "[B, T]":
        advantages = advantages.expand(B, T).where(s["mask"], NAN)
    window = Window(op, s["mask"].to(mask), s["old"], advantages, LABELS, parameters=budgets())
    found = window.coefficients(s["new"])
    training.every_regime(found.metrics)
    assert torch.equal(found.values, gradient(op, s, s["advantages"], budgets()))
    assert window.coef is found and (found.values[~s["mask"]] == 0).all()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_have_their_parts_of_the_whole_step(ranks):
    whole = gradient(operator(), step(), step()["advantages"], budgets())
    parts = spread(ranks, lambda window, mine: window.coefficients(mine["new"]))
    for rank, part in enumerate(parts):
        training.every_regime(part.metrics)
        assert torch.allclose(part.values, shares(whole, ranks, rank), rtol=1e-12, atol=1e-15)
        assert part.objective == parts[0].objective
