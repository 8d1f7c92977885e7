"""A policy and rollouts that are small enough to read, for the examples beside this file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

VOCABULARY, PROMPTS, SAMPLES = 32, 8, 6
DOMAINS = ("algebra", "code", "logic", "maps")


class Policy(nn.Module):
    """`log π(token | the token before it)` of every token of a piece."""

    def __init__(self, seed: int = 0, width: int = 16) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)

    def forward(self, piece: Piece) -> Tensor:
        return -cross_entropy(self.head(self.embedding(piece.before)), piece.token, reduction="none")


@dataclass(frozen=True)
class Piece:
    """Trajectories of a batch, packed: their tokens one after another. A micro-batch, or several joined."""

    before: Tensor  # int64 [tokens]
    token: Tensor  # int64 [tokens]
    old_log_probs: Tensor  # [tokens], when sampled
    advantages: Tensor  # [tokens]
    lengths: tuple[int, ...]  # one per trajectory, and so are the rest
    trajectory: tuple[str, ...]
    prompt_group: tuple[str, ...]
    domain: tuple[str, ...]

    @property
    def offsets(self) -> Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0)

    def split(self, pieces: int) -> list[Piece]:
        """So many pieces of whole trajectories, in order; empty ones where there are too few."""
        cuts = [len(self.lengths) * k // pieces for k in range(pieces + 1)]
        return [self.take(range(a, b)) for a, b in itertools.pairwise(cuts)]

    def take(self, rows: Sequence[int]) -> Piece:
        ends = self.offsets.tolist()
        places = torch.tensor([i for r in rows for i in range(ends[r], ends[r + 1])], dtype=torch.int64)
        values = [v[places] for v in (self.before, self.token, self.old_log_probs, self.advantages)]
        labels = (self.lengths, self.trajectory, self.prompt_group, self.domain)
        return Piece(*values, *(tuple(v[r] for r in rows) for v in labels))  # type: ignore[arg-type]


def join(pieces: Sequence[Piece]) -> Piece:
    """The pieces as one, one after another."""
    columns = {name: [getattr(piece, name) for piece in pieces] for name in vars(pieces[0])}
    return Piece(**{k: torch.cat(v) if isinstance(v[0], Tensor) else sum(v, ()) for k, v in columns.items()})


@torch.no_grad()
def rollouts(policy: Policy, seed: int = 0) -> Piece:
    """Sample, and reward even tokens: advantages are rewards less their prompt group's mean.

    Samples of one prompt lie apart, as a trainer that shuffles leaves them: micro-batches have some of each group.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = PROMPTS * SAMPLES
    lengths = torch.randint(3, 20, (rows,), generator=draw)
    said = [torch.arange(PROMPTS).repeat(SAMPLES)]  # a prompt is one token
    for _ in range(int(lengths.max())):
        likely = policy.head(policy.embedding(said[-1])).softmax(-1)
        said.append(torch.multinomial(likely, 1, generator=draw)[:, 0])
    text, kept = torch.stack(said, 1), torch.arange(int(lengths.max())) < lengths[:, None]
    reward = ((text[:, 1:] % 2 == 0) & kept).sum(1) / lengths
    advantage = reward - reward.view(SAMPLES, PROMPTS).mean(0).repeat(SAMPLES)
    prompts = [r % PROMPTS for r in range(rows)]
    piece = Piece(
        text[:, :-1][kept],
        text[:, 1:][kept],
        torch.zeros(int(lengths.sum())),
        advantage.to(likely.dtype).repeat_interleave(lengths),
        tuple(lengths.tolist()),
        tuple(f"sample {r}" for r in range(rows)),
        tuple(f"prompt {p}" for p in prompts),
        tuple(DOMAINS[p * len(DOMAINS) // PROMPTS] for p in prompts),
    )
    return Piece(**{**vars(piece), "old_log_probs": policy(piece)})
