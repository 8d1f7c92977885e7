"""A trainer of a few lines with gradient accumulation, and mistakes that trainers made in theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import fibration

ROWS, WIDTH, WORDS, SIZE, K = 8, 6, 11, 16, 4


class Policy(nn.Module):
    def __init__(self, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.body = nn.Linear(SIZE, SIZE)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Log-probs of ids `[rows, width]`, each after the one before it."""
        before = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
        logits = self.head(self.drop(torch.tanh(self.body(self.embed(before)))))
        return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


def policy(dtype: torch.dtype = torch.float32, **more: Any) -> Policy:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Policy(**more).to(dtype)


@dataclass
class Data:
    """A batch of padded rows, off policy."""

    ids: Tensor
    mask: Tensor
    old: Tensor
    advantages: Tensor


def data(model: Policy, drift: float = 0.3) -> Data:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(WORDS, (ROWS, WIDTH), generator=draw)
    lengths = torch.tensor([6, 2, 3, 1, 5, 4, 2, 6])
    mask = torch.arange(WIDTH) < lengths[:, None]
    with torch.no_grad():
        old = model(ids) + drift * torch.randn(ROWS, WIDTH, generator=draw).to(model.head.weight.dtype)
    return Data(ids, mask, old, torch.randn(ROWS, generator=draw).to(old.dtype))


OPERATOR = fibration.compile(fibration.load("grpo"), backend="torch")


def declared(model: nn.Module, d: Data) -> Callable[[], Tensor]:
    index = OPERATOR.index(mask=d.mask)
    return lambda: OPERATOR.loss(model(d.ids), d.old, d.advantages, index).loss


def in_parts(model: nn.Module, d: Data, parts: int = K) -> Callable[[], Iterator[Tensor]]:
    index = OPERATOR.index(mask=d.mask)

    def losses() -> Iterator[Tensor]:
        for rows in torch.arange(ROWS).chunk(parts):
            part = index.micro(rows)
            yield OPERATOR.loss(model(d.ids[rows]), d.old[rows], d.advantages[rows], part).loss

    return losses


def grpo(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Minus the objective of rows, averaged over them, with the bounds 0.2."""
    ratio, a = (log_probs - old).exp(), advantages[:, None]
    values = -(ratio * a).minimum(ratio.clamp(0.8, 1.2) * a)
    return ((values * mask).sum(-1) / mask.sum(-1)).mean()


@dataclass
class Trainer:
    """One optimizer step of K micro-batches. Its fields are where mistakes are put in."""

    model: Any
    data: Data
    divide: float = K
    order: list[int] = field(default_factory=lambda: list(range(K)))  # the micro-batches that are trained on
    advantages: Tensor | None = None
    loss: Callable[..., Tensor] = grpo
    between: Callable[[int], None] = lambda _: None  # before each micro-batch
    after: Callable[[], None] = lambda: None  # all backward passes
    log_probs: Callable[[Tensor], Tensor] | None = None

    def __call__(self) -> None:
        d, chunks = self.data, torch.arange(ROWS).chunk(K)
        advantages = d.advantages if self.advantages is None else self.advantages
        for n in self.order:
            rows = chunks[n]
            self.between(n)
            log_probs = self.model(d.ids[rows]) if self.log_probs is None else self.log_probs(rows)
            (self.loss(log_probs, d.old[rows], advantages[rows], d.mask[rows]) / self.divide).backward()
        self.after()
