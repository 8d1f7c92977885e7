"""The batches of a benchmark: tokens in trajectories, padded or packed, with labels for any chain, tree or quiver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.errors import BatchError
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator

UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20}
LAYOUTS = ("packed", "padded")
DTYPES = ("float32", "bfloat16", "float16", "float64")
SIGMA = 0.6  # standard deviation of the logarithm of a trajectory's length
LONGEST = 4  # times the mean length: a trainer truncates responses there
MISMATCH = 0.05  # standard deviation, in nats, of an engine's log-probs from the old policy's
SAMPLES = 8  # trajectories per prompt
ROOTS = 4  # elements of a coarsest stratum
IMAGES = 0.3  # share of a trajectory's tokens in the second leaf, if there are two

Array = NDArray[Any]
Labels = dict[str, Array]


@dataclass(frozen=True)
class Shape:
    """`tokens` unmasked tokens in trajectories of mean length `length`, of lognormal lengths or of equal ones."""

    tokens: int
    length: int = 512
    spread: str = "lognormal"
    layout: str = "packed"

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens, {self.layout}, {self.spread} lengths of {self.length:,}"


@dataclass(frozen=True)
class Batch:
    """Token tensors have the layout's shape; `labels` are the labels for the index, per row or token."""

    offsets: Tensor  # int64 [rows + 1]
    mask: Tensor | None  # bool [rows, longest], None if packed
    log_probs: Tensor  # nats
    old_log_probs: Tensor  # nats
    advantages: Tensor  # [rows], or the tokens' shape
    labels: Mapping[str, Tensor]  # on the CPU
    policies: Mapping[str, Tensor]  # log-probs of further policies, nats

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def bytes_moved(self) -> int:
        """The bytes that every implementation must move: each unmasked input read once, each coefficient written once.

        Coefficients are written under the mask too (0), and are float32 if the log-probs are narrower.
        """
        item, per_token = self.log_probs.element_size(), self.advantages.shape == self.log_probs.shape
        read = (2 + len(self.policies)) * self.tokens + (self.tokens if per_token else self.advantages.numel())
        layout = self.offsets.numel() * 8 if self.mask is None else self.mask.numel()
        return read * item + layout + self.log_probs.numel() * max(item, 4)

    def index(self, operator: Operator, **group: Any) -> Index:
        rows: dict[str, Any] = {"offsets": self.offsets} if self.mask is None else {"mask": self.mask}
        attributes = {n: a.usual for n, a in operator.hierarchy.attributes.items()}
        return operator.index(
            **rows, **group, attributes=attributes or None, device=self.log_probs.device, **self.labels
        )


def make_batch(h: Hierarchy, shape: Shape, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> Batch:
    """A random batch as after a few updates: every gate has elements within its budget and beyond it.

    No log ratio is exactly 0, where hand-written losses have another slope (docs/bench.md). Advantages are per token
    where a critic or a reward-to-go gives them, else per trajectory.
    """
    generator = np.random.default_rng(seed)

    def normal(size: int, deviation: float) -> Array:
        return generator.normal(0, deviation, size).astype(np.float32)

    lengths = row_lengths(shape, generator)
    rows, tokens = len(lengths), int(lengths.sum())
    row = np.repeat(np.arange(rows), lengths)
    of_rows, of_tokens = make_labels(h, lengths, generator)
    x = normal(tokens, 0.06) + normal(rows, 0.15)[row]
    for above in of_rows.values():
        x += normal(above.max() + 1, 0.15)[above][row]
    x = np.copysign(np.maximum(np.abs(x), 1e-3), x)
    old = -0.1 - generator.exponential(1.0, tokens).astype(np.float32)
    per_token = h.name == "ppo" or adds_up_tokens(h)
    advantages = normal(tokens if per_token else rows, 1)
    passed = [name for name, policy in h.policies.items() if policy.is_passed]
    mask = np.arange(lengths.max()) < lengths[:, None] if shape.layout == "padded" else None

    def lay(values: Array) -> Tensor:
        """Values of tokens in the layout's shape."""
        if mask is not None:
            whole = np.zeros(mask.shape, values.dtype)
            whole[mask] = values
            values = whole
        return torch.from_numpy(values)

    kind = getattr(torch, dtype)
    log_probs, old_log_probs = lay(old + x).to(device, kind), lay(old).to(device, kind)
    same = (log_probs == old_log_probs) & (old_log_probs != 0)  # after rounding to few digits
    return Batch(
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])).to(device),
        mask=None if mask is None else torch.from_numpy(mask).to(device),
        log_probs=torch.where(same, old_log_probs * 0.98, log_probs),
        old_log_probs=old_log_probs,
        advantages=(lay(advantages) if per_token else torch.from_numpy(advantages)).to(device, kind),
        labels={n: torch.from_numpy(v) for n, v in of_rows.items()} | {n: lay(v) for n, v in of_tokens.items()},
        policies={name: lay(np.minimum(old + normal(tokens, MISMATCH), -1e-3)).to(device, kind) for name in passed},
    )


def row_lengths(shape: Shape, generator: np.random.Generator) -> Array:
    """The length of every trajectory, in tokens. Their sum is `shape.tokens`, up to less than one trajectory."""
    length = min(shape.length, shape.tokens)
    rows = max(1, shape.tokens // length)
    if shape.spread == "equal" or length == 1 or rows == 1:
        return np.full(rows, length)
    weight = np.minimum(generator.lognormal(0, SIGMA, rows), LONGEST * np.exp(SIGMA**2 / 2))
    return np.maximum(1, np.floor(weight / weight.sum() * shape.tokens)).astype(np.int64)


def make_labels(h: Hierarchy, lengths: Array, generator: np.random.Generator) -> tuple[Labels, Labels]:
    """Labels per row, and labels per token, for any chain, tree or quiver.

    Neighbouring trajectories share a prompt, and prompts are dealt out to domains. Strata that cross, over the rows or
    over tokens, have random labels. A stratum with several finer strata has one element. A stratum between tokens and
    rows cuts each row into equal pieces, and each finer one into twice as many. Several leaves have masks.
    """
    row = np.repeat(np.arange(len(lengths)), lengths)
    share = (np.arange(len(row)) - (np.cumsum(lengths) - lengths)[row]) / lengths[row]  # of the row before each token
    prompts = np.arange(len(lengths)) // SAMPLES
    of_rows, of_tokens = {s.name: prompts for s in h.groups}, Labels()
    coarser = h.coarser(h.rows) if h.rows in h.strata else ()
    crossing = sum(f.source == h.rows for s in coarser for f in h.shape.above(s)) > 1
    bounds = [0.0, *np.linspace(IMAGES, 1.0, len(h.leaves))]
    for s in (s for s in reversed(h.order) if s != h.rows and s.name != BATCH):
        finer = [f.source for f in h.shape.above(s) if f.source == h.rows or f.source.name in of_rows]
        deeper = [c for c in h.coarser(s) if c.name != BATCH]
        if s in h.leaves:
            k = len(h.leaves) - 1 - h.leaves.index(s)
            of_tokens |= {s.name: (share >= bounds[k]) & (share < bounds[k + 1])} if len(h.leaves) > 1 else {}
        elif len(finer) > 1:
            of_rows[s.name] = np.zeros_like(prompts)
        elif finer == [h.rows]:
            of_rows[s.name] = generator.integers(0, ROOTS, len(lengths)) if crossing else prompts
        elif finer:
            of_rows[s.name] = of_rows[finer[0].name] % ROOTS ** len([s, *deeper])
        elif h.rows in h.coarser(s):
            pieces = 4 * 2 ** sum(h.rows in h.coarser(c) for c in deeper)
            of_tokens[s.name] = ((row + share) * pieces).astype(np.int64)
        else:
            of_tokens[s.name] = generator.integers(0, 2 * ROOTS, len(row))
    return of_rows, of_tokens


def parse_count(text: str) -> int:
    """Reads `65536`, `64Ki`, `64 Ki` or `4Mi`. Raises BatchError for anything but a positive whole number."""
    found = re.fullmatch(r"([0-9]+)\s*(Ki|Mi|)", text.strip())
    if found is None or int(found[1]) == 0:
        raise BatchError(f"'{text}' is not a number of tokens", required="a whole number such as 65536, 64Ki or 4Mi")
    return int(found[1]) * UNITS[found[2]]
