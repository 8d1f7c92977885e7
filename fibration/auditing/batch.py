"""Small batches for a function under audit: rows of numbers, and how they are padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
POLICIES = ("log_probs", "old_log_probs", "ref_log_probs", "rollout_log_probs")
# What else has a number per token: those of a policy, moved. A critic's values are no log-probs, but numbers like them.
LIKE = {
    "teacher_log_probs": ("ref_log_probs", -0.3), "values": ("log_probs", 0.0), "old_values": ("old_log_probs", 0.0),
    "returns": ("rollout_log_probs", 0.4),
}  # fmt: skip
UNDER = dict(zip((*POLICIES, *LIKE), (1.0, 1.7, 0.6, 1.3, 0.8, 1.0, 1.7, 0.9), strict=True))
OLD = -5.0  # the old policy's log-prob of tokens whose ratio is moved


@dataclass(frozen=True)
class Row:
    """One response: a log-prob per token under each policy, in nats; its advantage, its reward and its group."""

    log_probs: tuple[float, ...]
    old_log_probs: tuple[float, ...]
    ref_log_probs: tuple[float, ...]
    rollout_log_probs: tuple[float, ...]
    advantage: float = 1.0
    reward: float = 0.0
    group: int = 0

    def __len__(self) -> int:
        return len(self.log_probs)

    def mapped(self, change: Callable[[tuple[float, ...]], tuple[float, ...]]) -> Row:
        """The row with `change` applied to the log-probs of every policy."""
        log_probs, old, ref, rollout = (change(getattr(self, p)) for p in POLICIES)
        return Row(log_probs, old, ref, rollout, self.advantage, self.reward, self.group)


@dataclass(frozen=True)
class Padding:
    """Where the masked places of a padded batch are, and the log-probs there.

    `before`, `after`: masked places before the first token of each row, and after the last one of the longest row.
    `holes`: a masked place after each token. `value`: the current log-probs under the mask; those of other policies are
    multiples of it, so that ratios there are not 1.
    """

    before: int = 0
    after: int = 0
    holes: bool = False
    value: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Rows, and their padding. Arrays per token list the tokens row by row: `[tokens]`."""

    rows: tuple[Row, ...]
    padding: Padding = Padding()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.rows))

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def places(self) -> list[tuple[int, ...]]:
        """Of each token: its row, and where it stands there."""
        return [(row, t) for row, n in enumerate(self.lengths) for t in range(n)]

    @property
    def is_probe(self) -> bool:
        """Whether every row has one token."""
        return max(self.lengths, default=0) == 1

    @property
    def advantages(self) -> Floats:
        """Per token."""
        return np.repeat([r.advantage for r in self.rows], self.lengths)

    @property
    def log_ratios(self) -> Floats:
        """Per token: `log π − log π_old`."""
        return self.of("log_probs") - self.of("old_log_probs")

    @property
    def row_of_token(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.rows)), self.lengths)

    def counts(self, row: int) -> dict[str, int]:
        """What a loss may divide by, of the batch and of a row: `COUNTS`."""
        groups, lengths = [r.group for r in self.rows], self.lengths
        here = [n for n, g in zip(lengths, groups, strict=True) if g == groups[row]]
        found = {"rows": len(groups), "batch": sum(lengths), "width": max(lengths), "groups": len(set(groups))}
        return found | {"row": lengths[row], "group": sum(here), "rows of the group": len(here)}

    def of(self, role: str) -> Floats:
        policy, by = LIKE.get(role, (role, 0.0))
        return np.array([v + by for row in self.rows for v in getattr(row, policy)], np.float64)

    @property
    def mask(self) -> Tensor:
        """bool `[rows, width]`."""
        return torch.from_numpy(self._mask.copy())

    @property
    def _mask(self) -> NDArray[np.bool_]:
        step = 1 + self.padding.holes
        width = self.padding.before + step * max((*self.lengths, 1)) + self.padding.after
        mask = np.zeros((len(self.rows), width), np.bool_)
        for row, n in enumerate(self.lengths):
            mask[row, self.padding.before : self.padding.before + step * n : step] = True
        return mask

    def padded(self, values: Floats, dtype: torch.dtype, under: float = 0.0) -> Tensor:
        """Values per token as `[rows, width]`, and `under` the mask."""
        mask = self._mask
        found = np.full(mask.shape, under)
        found[mask] = values
        return torch.from_numpy(found).to(dtype)

    def mapped(self, change: Callable[[Row], Row]) -> Batch:
        """The batch with `change` applied to every row, the first one first."""
        return replace(self, rows=tuple(map(change, self.rows)))

    def on_policy(self) -> Batch:
        """The batch with the old policy's log-probs for every policy."""
        frozen = POLICIES[0], *POLICIES[2:]
        return self.mapped(lambda r: replace(r, **dict.fromkeys(frozen, r.old_log_probs)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{len(self.rows)} rows of {', '.join(map(str, self.lengths))} tokens"


def drawn(
    seed: int,
    lengths: Sequence[int],
    drift: float,
    by_row: float = 0.0,
    groups: Sequence[int] | None = None,
    advantages: Sequence[float] | None = None,
    padding: Padding = Padding(),
) -> Batch:
    """A random batch. `drift`, `by_row`: the spread of log ratios of tokens, and of whole rows."""
    draw = np.random.default_rng(seed)

    def row(n: int, group: int, advantage: float) -> Row:
        old = -draw.exponential(0.8, n) - 0.2

        def near(tokens: float, whole: float) -> tuple[float, ...]:
            return tuple(map(float, np.minimum(old + draw.normal(0, 1, n) * tokens + draw.normal() * whole, -1e-3)))

        made = near(drift, by_row), tuple(map(float, old)), near(0.3, 0.1), near(max(0.2, drift), 0.1)
        return Row(*made, advantage=advantage, reward=float(draw.normal()), group=group)

    groups = groups or [i // 2 for i in range(len(lengths))]
    given = advantages or [float((-1) ** i * v) for i, v in enumerate(draw.uniform(0.3, 2, len(lengths)))]
    return Batch(tuple(map(row, lengths, groups, given)), padding)


def probe(log_ratios: Floats, advantages: Floats, mismatch: bool = False) -> Batch:
    """A row of one token for every log ratio of the current to the old policy; or, for `mismatch`, of the old policy to
    the rollout's. The reference is the current policy. Each row is of a group of its own.
    """

    def row(number: int, x: float, advantage: float) -> Row:
        log_prob, rollout = (OLD, OLD - x) if mismatch else (OLD + x, OLD)
        return Row((log_prob,), (OLD,), (log_prob,), (rollout,), advantage, advantage, number)

    pairs = enumerate(zip(log_ratios, advantages, strict=True))
    return Batch(tuple(row(i, float(x), float(a)) for i, (x, a) in pairs))


@cache
def small() -> tuple[Batch, ...]:
    """Batches of one token up to nine, the smallest first, with numbers that are short in print.

    No log ratio has two digits, as bounds do: exactly there, rounding would decide which side of a bound a token is on.
    """
    places = (-3.013, -1.513, -0.413, -0.263, -0.113, -0.013, 0.013, 0.113, 0.263, 0.413, 1.513, 3.013)
    found = [probe(np.array([x]), np.array([a])) for x in places for a in (1.0, -1.0)]
    shapes = ((1,), (2,), (1, 1), (2, 1), (3,), (1, 2), (2, 2), (1, 1, 1), (3, 1), (1, 1, 1, 1), (3, 5, 1))
    for seed, lengths in enumerate(shapes):
        for drift in (0.1, 0.6, 2.0):
            for sign in (1.0, -1.0):
                advantages = [sign * a for a in (1.0, -1.0, 0.5, -2.0)[: len(lengths)]]
                b = drawn(seed, lengths, drift, 0.0, None, advantages)
                rows = [r.mapped(lambda v: tuple(round(x - 0.01, 2) for x in v)) for r in b.rows]
                rows = [replace(r, old_log_probs=tuple(round(x - 0.003, 3) for x in r.old_log_probs)) for r in rows]
                rows = [replace(r, reward=round(r.reward, 1) + i) for i, r in enumerate(rows)]
                found.append(replace(b, rows=tuple(rows)))
    return tuple(sorted(found, key=lambda b: b.tokens))


# ------------------------------------------------------------ on which a function is compared with declared losses

SPREADS = (1e-3, 0.02, 0.15, 0.5, 1.5)  # of log ratios
SHAPES = ((1,), (4,), (1, 3, 5, 2), (2, 2), (6, 1, 1, 3, 4), (2, 1, 3, 2, 4, 1, 2, 3))
GROUPS = ((0,), (0,), (0, 1, 0, 1), (0, 1), (0, 1, 0, 1, 2), (0, 0, 0, 0, 0, 0, 1, 1))  # of rows, in each shape


def steps(most: float = 4.5, count: int = 64) -> Floats:
    """Log ratios on both sides of 0, denser near it, and none of them 0."""
    up = np.geomspace(2e-4, most, count)
    return np.concatenate([-up[::-1], up])


@cache
def on_policy() -> tuple[Batch, ...]:
    """Batches of fresh rows: all policies agree."""
    found = [*small()[:1], *(b for b in small() if not b.is_probe)]
    found += [drawn(10 + i, lengths, 0.0) for i, lengths in enumerate((*SHAPES[:-1], (3, 7, 2, 2)))]
    found.append(drawn(16, SHAPES[-1], 0.0, groups=GROUPS[-1]))
    return tuple(b.on_policy() for b in sorted(found, key=lambda b: b.tokens))


@cache
def off_policy() -> tuple[Batch, ...]:
    """Batches of many rows and every spread, some places masked."""
    places = (Padding(), Padding(before=2), Padding(holes=True), Padding(after=3))
    each = ((k, s, i) for k, s in enumerate(SPREADS) for i in (2, len(SHAPES) - 1))
    return tuple(drawn(100 * k + i, SHAPES[i], s, s, GROUPS[i], padding=places[(i + k) % 4]) for k, s, i in each)
