"""The batches of a benchmark: number of tokens, lengths of trajectories, padded or packed; the shapes of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.bench.labels import fine_labels, row_labels
from fibration.errors import BatchError
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.runtime.index.index import Index
from fibration.runtime.operator import Operator

KI, MI = 2**10, 2**20
SPREADS = ("equal", "lognormal", "giant")
LAYOUTS = ("packed", "padded")
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
SIGMA = 0.6  # standard deviation of the logarithm of a trajectory's length
LONGEST = 4  # times the mean length: a trainer truncates responses there
MISMATCH = 0.05  # standard deviation, in nats, of an engine's log-probs from the old policy's
PADDING = 32  # most positions per token of a padded batch
PER_TOKEN_ADVANTAGES = ("ppo",)  # a critic gives one number per token; a group's rewards give one per trajectory


@dataclass(frozen=True)
class Shape:
    """`tokens` unmasked tokens in trajectories of mean length `length`."""

    tokens: int
    length: int = 512
    spread: str = "lognormal"  # equal, lognormal, or giant: one trajectory holds half of the tokens
    layout: str = "packed"

    def __str__(self) -> str:
        what = {"equal": "equal", "lognormal": "lognormal", "giant": "short but one"}[self.spread]
        return f"{count(self.tokens)} tokens, {self.layout}, length {count(self.length)} ({what})"


@dataclass(frozen=True)
class Problem:
    """One batch. Token tensors have the layout's shape; `labels` are the labels for the index, per row or token."""

    shape: Shape
    lengths: NDArray[np.int64]  # [rows], in tokens
    offsets: Tensor  # int64 [rows + 1]
    mask: Tensor | None  # bool [rows, longest], None if packed
    log_probs: Tensor  # nats
    old_log_probs: Tensor  # nats
    advantages: Tensor  # [rows], or the tokens' shape
    labels: Mapping[str, Any]
    policies: Mapping[str, Tensor]  # log-probs of further policies, nats

    @property
    def device(self) -> torch.device:
        return self.log_probs.device

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def bytes_moved(self) -> int:
        """The bytes that every implementation must move: each unmasked input read once, each coefficient written once.

        Coefficients are written under the mask too (0), and are float32 if the log-probs are narrower.
        """
        item = self.log_probs.element_size()
        per_token = self.advantages.shape == self.log_probs.shape
        advantages = self.tokens if per_token else self.advantages.numel()
        layout = self.offsets.numel() * 8 if self.mask is None else self.mask.numel()
        return (
            ((2 + len(self.policies)) * self.tokens + advantages) * item
            + layout
            + self.log_probs.numel() * max(item, 4)
        )

    def index(self, operator: Operator, group: Any = None) -> Index:
        given: dict[str, Any] = {"offsets": self.offsets} if self.mask is None else {"mask": self.mask}
        given |= {} if group is None else {"group": group}
        attributes = {n: a.usual for n, a in operator.hierarchy.attributes.items()}
        return operator.index(**given, attributes=attributes or None, device=self.device, **self.labels)


def make_problem(
    hierarchy: Hierarchy, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> Problem:
    """A random batch as after a few updates: every gate has elements within its budget and beyond it.

    Raises BatchError if padding needs more than `PADDING` positions per token. No log ratio is exactly 0, where
    hand-written losses have another slope (docs/bench.md).
    """
    generator = np.random.default_rng(seed)
    lengths = row_lengths(shape, generator)
    rows, width = len(lengths), int(lengths.max())
    if shape.layout == "padded" and rows * width > PADDING * shape.tokens:
        raise BatchError(
            f"{shape} would be padded to {rows} × {width} positions",
            required=f"at most {PADDING} positions per token",
            remedy="pack it: offsets=cu_seqlens",
        )
    row = np.repeat(np.arange(rows), lengths)
    labels = row_labels(hierarchy, rows)
    x = generator.normal(0, 0.06, len(row)).astype(np.float32)
    x += generator.normal(0, 0.15, rows).astype(np.float32)[row]
    for above in labels.values():
        if len(above) == rows:
            x += generator.normal(0, 0.15, int(max(above)) + 1).astype(np.float32)[np.asarray(above)][row]
    x = np.copysign(np.maximum(np.abs(x), 1e-3), x)
    old = -0.1 - generator.exponential(1.0, len(row)).astype(np.float32)
    per_token = hierarchy.name in PER_TOKEN_ADVANTAGES or adds_up_tokens(hierarchy)
    advantages = generator.normal(0, 1, len(row) if per_token else rows).astype(np.float32)
    labels |= fine_labels(hierarchy, row, lengths, generator)
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    mask = np.arange(width) < lengths[:, None] if shape.layout == "padded" else None

    def lay(values: NDArray[Any]) -> NDArray[Any]:
        if mask is None or len(values) != len(row):
            return values
        whole = np.zeros(mask.shape, values.dtype)
        whole[mask] = values
        return whole

    def tensor(values: NDArray[Any], per_token: bool = True) -> Tensor:
        return torch.from_numpy(lay(values) if per_token else values).to(device, dtype)

    passed = [name for name, policy in hierarchy.policies.items() if policy.is_passed]
    others = {name: np.minimum(old + generator.normal(0, MISMATCH, len(old)), -1e-3) for name in passed}
    log_probs, old_log_probs = tensor(old + x), tensor(old)
    same = (log_probs == old_log_probs) & (old_log_probs != 0)  # after rounding to few digits
    log_probs = torch.where(same, old_log_probs * 0.98, log_probs)
    return Problem(
        shape=shape,
        lengths=lengths,
        offsets=torch.from_numpy(offsets).to(device),
        mask=None if mask is None else torch.from_numpy(mask).to(device),
        log_probs=log_probs,
        old_log_probs=old_log_probs,
        advantages=tensor(advantages, per_token),
        labels={k: lay(v) for k, v in labels.items()},
        policies={name: tensor(values.astype(np.float32)) for name, values in others.items()},
    )


def row_lengths(shape: Shape, generator: np.random.Generator) -> NDArray[np.int64]:
    """The length of every trajectory, in tokens. Their sum is `shape.tokens`, up to less than one trajectory."""
    length = min(shape.length, shape.tokens)
    if shape.spread == "giant":
        short = max(1, shape.tokens // 2 // length)
        lengths = np.full(short + 1, min(length, max(1, shape.tokens // 2)), np.int64)
        lengths[short // 2] = max(1, shape.tokens - lengths[0] * short)
        return lengths
    rows = max(1, shape.tokens // length)
    if shape.spread == "equal" or length == 1 or rows == 1:
        return np.full(rows, length, np.int64)
    weight = np.minimum(generator.lognormal(0, SIGMA, rows), LONGEST * math.exp(SIGMA**2 / 2))
    return np.maximum(1, np.floor(weight / weight.sum() * shape.tokens)).astype(np.int64)


# ---------------------------------------------------------------- the shapes of a sweep


@dataclass(frozen=True)
class Sweep:
    """The shapes of a sweep: one axis varies at a time, the others stay at `centre`."""

    centre: Shape
    axes: Mapping[str, Sequence[Any]]

    def shapes(self) -> list[Shape]:
        visited = {self.centre: None}
        for axis, values in self.axes.items():
            visited |= {replace(self.centre, **{axis: v}): None for v in values}
        order = {name: i for i, name in enumerate((*LAYOUTS, *SPREADS))}
        return sorted(visited, key=lambda s: (order[s.layout], order[s.spread], s.length, s.tokens))


def sweep(tokens: Sequence[int], length: int, quick: bool) -> Sweep:
    """The sweep over tokens, trajectory length, raggedness and padding. To sweep depth, name several hierarchies."""
    given = tuple(tokens) or ((16 * KI, 64 * KI, 256 * KI) if quick else (16 * KI, 64 * KI, 256 * KI, MI, 4 * MI))
    centre = Shape(sorted(given)[(len(given) - 1) // 2] if tokens or quick else MI, length)
    lengths = (1, 64, 4 * KI) if quick else (1, 8, 64, 512, 4 * KI, 64 * KI)
    axes = {
        "tokens": given,
        "length": [n for n in lengths if n <= centre.tokens],
        "spread": SPREADS,
        "layout": LAYOUTS,
    }
    return Sweep(centre, axes)


def count(n: int) -> str:
    """A number as text, with a binary prefix if it is a multiple of it: 65536 is `64 Ki`."""
    for size, word in ((MI, "Mi"), (KI, "Ki")):
        if n >= size and n % size == 0:
            return f"{n // size} {word}"
    return str(n)


def parse_count(text: str) -> int:
    """Reads `65536`, `64Ki`, `64 Ki` or `4Mi`. Raises BatchError for anything but a positive whole number."""
    number, scale = text.strip(), 1
    for word, size in (("Mi", MI), ("Ki", KI)):
        if number.endswith(word):
            number, scale = number.removesuffix(word).strip(), size
            break
    if not number.isascii() or not number.isdigit() or int(number) == 0:
        raise BatchError(f"'{text}' is not a number of tokens", required="a whole number such as 65536, 64Ki or 4Mi")
    return int(number) * scale
