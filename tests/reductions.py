"""The reductions of trainers, from token losses to one loss, written after their sources; and an off-policy step.

A reduction takes the micro-batches of every rank and returns the loss whose gradient the optimizer gets. It includes
DDP's mean over ranks and the engine's division by the number of micro-batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import example_loops
import support
import torch
from torch import Tensor

from fibration.runtime.operator import Operator

B, T = 24, 10
ROWS = torch.arange(B)
PARTS = (5, 1, 2, 3, 1, 4, 2, 6)  # rows of micro-batches, dealt to ranks in turn; empty micro-batches fill up
LABELS: dict[str, list[Any]] = {
    "prompt_group": [f"p{i // 4}" for i in range(B)],
    "domain": ["math" if i < 8 else "code" if i < 16 else "maps" for i in range(B)],
}


@dataclass(frozen=True)
class Batch:
    """Rows of one step, or of a micro-batch: padded `[B, T]`, float64."""

    rows: Tensor  # numbers of the step's rows
    mask: Tensor
    old: Tensor
    new: Tensor
    advantages: Tensor
    weights: Tensor

    def take(self, chosen: Any) -> Batch:
        return Batch(**{name: t[chosen] for name, t in vars(self).items()})

    @property
    def labels(self) -> dict[str, list[Any]]:
        return {name: [given[i] for i in self.rows.tolist()] for name, given in LABELS.items()}


@functools.cache
def step() -> Batch:
    """Ragged rows, NaN under the mask. Three rows have no token; one of the three is alone in its micro-batch."""
    make = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    mask = torch.rand(B, T, generator=make) < 0.8
    mask[5] = mask[11] = mask[22] = False
    old = normal(B, T) - 2
    new = old + 0.3 * normal(B, T) + 0.3 * normal(B, 1)
    weights = 0.5 + torch.rand(B, T, generator=make, dtype=torch.float64)
    old, new, weights = (t.where(mask, torch.nan) for t in (old, new, weights))
    return Batch(ROWS, mask, old, new, normal(B), weights)


def operator() -> Operator:
    return support.operator(support.spec("fiberpo_domain"), "c")


@functools.cache
def budgets() -> dict[str, Any]:
    """Budgets for which elements of every level pass, are rolled back and are zeroed on both channels."""
    s = step()
    index = operator().index(mask=s.mask, **s.labels)
    chosen = example_loops.narrow(operator(), index, s.new - s.old)
    example_loops.every_regime(operator().coefficients(s.new, s.old, s.advantages, index, chosen).metrics)
    return chosen


@functools.cache
def wanted(weights: bool = False) -> Tensor:
    """Minus the gradient of `op.loss` on the whole step. `weights` are multiplied into the advantages."""
    s = step()
    advantages = s.advantages[:, None] * s.weights if weights else s.advantages
    new = s.new.clone().requires_grad_()
    operator().loss(new, s.old, advantages, operator().index(mask=s.mask, **s.labels), budgets()).loss.backward()
    assert new.grad is not None
    return -new.grad


def parted(ranks: int) -> list[list[Tensor]]:
    """The rows of every micro-batch, per rank. All ranks have the same number of micro-batches."""
    micro_batches = list(ROWS.split(list(PARTS)))
    found = [micro_batches[rank::ranks] for rank in range(ranks)]
    return [mine + [ROWS[:0]] * (len(found[0]) - len(mine)) for mine in found]


# ---------------------------------------------------------------- losses of tokens


@dataclass(frozen=True)
class Piece:
    """A micro-batch as a trainer has it: `loss` per token, with no gradient to tokens under the mask."""

    loss: Tensor
    mask: Tensor
    rows: Tensor

    @property
    def tokens(self) -> int:
        return int(self.mask.sum())

    @property
    def sums(self) -> Tensor:
        return (self.loss * self.mask).sum(1)


def clipped(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """`-min(r A, clip(r) A)` of each token."""
    ratio = (new - old).where(mask, 0).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)


def gradient(
    reduce: Reduction,
    s: Batch,
    advantages: Tensor,
    ranks: int,
    weights: Tensor | None = None,
    old: Tensor | None = None,
) -> Tensor:
    """Minus the gradient of a trainer's loss: `[B, T]`. Old log-probs default to the detached new ones."""
    new = s.new.clone().requires_grad_()
    loss = clipped(new, new.detach() if old is None else old, advantages, s.mask)
    loss = loss * (1 if weights is None else weights.where(s.mask, 0))
    pieces = [[Piece(loss[rows], s.mask[rows], rows) for rows in mine] for mine in parted(ranks)]
    (found,) = torch.autograd.grad(reduce(pieces), new)
    return -found


Pieces = Sequence[Sequence[Piece]]
Reduction = Callable[[Pieces], Tensor]


def over(pieces: Pieces, loss: Callable[[Piece], Tensor | float]) -> Tensor:
    """The mean over ranks of the sum over a rank's micro-batches."""
    return sum((sum(map(loss, mine)) for mine in pieces), torch.zeros((), dtype=torch.float64)) / len(pieces)


def total(pieces: Pieces, count: Callable[[Piece], Any]) -> float:
    return float(sum(count(p) for mine in pieces for p in mine))


def skyrl(pieces: Pieces) -> Tensor:
    """A sum, times ranks."""
    return over(pieces, lambda p: p.sums.sum() * len(pieces))


def openrlhf(pieces: Pieces) -> Tensor:
    """Divides by the tokens of all micro-batches and ranks. The number of micro-batches divides tokens and loss."""
    k = len(pieces[0])
    count = total(pieces, lambda p: p.tokens) / k
    return over(pieces, lambda p: p.sums.sum() / count * len(pieces) / k)


def openrlhf_rows(pieces: Pieces) -> Tensor:
    """As `openrlhf`, but divides by rows that have a token."""
    k = len(pieces[0])
    count = total(pieces, lambda p: p.mask.any(1).sum()) / k
    return over(pieces, lambda p: (p.sums / (p.mask.sum(1) + 1e-8)).sum() / count * len(pieces) / k)


def slime(pieces: Pieces) -> Tensor:
    """Divides by the tokens of a rollout, at least 1, and by rollouts. Megatron cancels the factors `k` and ranks."""
    k, rollouts = len(pieces[0]), B // 2
    length = rollout_lengths()
    return over(pieces, lambda p: (p.sums / length[p.rows].clamp(min=1)).sum() * k / rollouts * len(pieces) / k)


def rollout_lengths() -> Tensor:
    """The tokens of each row's rollout, which has two rows."""
    return step().mask.sum(1).reshape(-1, 2).sum(1).repeat_interleave(2)


def slime_tokens(pieces: Pieces) -> Tensor:
    """Divides the sum over everything by all tokens, with at least 1 per sample."""
    count = total(pieces, lambda p: p.mask.sum(1).clamp(min=1).sum())
    return over(pieces, lambda p: p.sums.sum()) * len(pieces) / count


def areal(pieces: Pieces) -> Tensor:
    """The mean of each micro-batch, weighted by its share of tokens. Micro-batches without tokens are left out."""
    count = total(pieces, lambda p: p.tokens)
    return over(
        pieces, lambda p: p.sums.sum() / p.tokens * (p.tokens / count * len(pieces)) if p.tokens else torch.tensor(0.0)
    )


def nemo(pieces: Pieces) -> Tensor:
    """Divides by all tokens plus 1e-8, times ranks."""
    count = total(pieces, lambda p: p.tokens) + 1e-8
    return over(pieces, lambda p: p.sums.sum() / count * len(pieces))


def nemo_rows(pieces: Pieces) -> Tensor:
    """Divides rows by their tokens plus 1e-8, and by all samples plus 1e-8, times ranks."""
    count = total(pieces, lambda p: len(p.rows)) + 1e-8
    return over(pieces, lambda p: (p.sums / (p.mask.sum(1) + 1e-8)).sum() / count * len(pieces))


def constant(pieces: Pieces) -> Tensor:
    """Divides by one constant length and by all rows, times ranks."""
    return over(pieces, lambda p: p.sums.sum() / (B * 512) * len(pieces))


def per_micro_batch(pieces: Pieces) -> Tensor:
    """Divides by the tokens of each micro-batch and by the number of micro-batches, without a factor for ranks."""
    return over(pieces, lambda p: p.sums.sum() / max(p.tokens, 1) / len(pieces[0]))


def rows_per_micro_batch(pieces: Pieces) -> Tensor:
    """Divides rows by their tokens, at least 1, then by the rows and by the number of micro-batches."""
    k = len(pieces[0])
    return over(pieces, lambda p: (p.sums / p.mask.sum(1).clamp(min=1)).sum() / max(len(p.rows), 1) / k)
