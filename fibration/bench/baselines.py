"""The losses as a careful engineer writes them in eager torch, for comparison: float32, autograd for the gradient.

They are as fast as eager torch allows: masked sums over dim 1 of a padded batch, segment sums over a packed one,
advantages multiplied in after the sum over tokens where a loss allows it, nothing computed twice. At a log ratio of
exactly 0 the sign-split losses have slope 2 here, not 1 (docs/bench.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fibration.bench.batches import Batch
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load

SHORT = 4  # tokens per trajectory up to which index_add is faster than segment_reduce on a CPU


class Elements(NamedTuple):
    of: Tensor  # int64 [B], the element of each trajectory
    rows: Tensor  # [elements], their trajectories
    tokens: Tensor  # [B], the tokens of each trajectory's element

    def sums(self, values: Tensor) -> Tensor:
        return torch.zeros_like(self.rows).index_add(0, self.of, values)


@dataclass(frozen=True)
class Prepared:
    """A batch, and what a trainer prepares once for it."""

    batch: Batch
    mask: Tensor | None  # float [B, T], None for a packed batch
    row: Tensor  # int64 [N], of a packed batch
    length: Tensor  # [B], in tokens
    strata: Mapping[str, Elements]
    image: Tensor | None  # bool, in the tokens' shape
    crossing: Tensor  # from sums over domains and modalities to their effects

    def sums(self, values: Tensor) -> Tensor:
        """Sums over the tokens of every trajectory. Padded values must be 0 under the mask."""
        if self.mask is not None:
            return values.sum(1)
        if len(self.row) <= SHORT * len(self.length):
            return torch.zeros_like(self.length).index_add(0, self.row, values)
        return torch.segment_reduce(values, "sum", offsets=self.batch.offsets, unsafe=True)

    def spread(self, values: Tensor) -> Tensor:
        """Copies values of trajectories to their tokens."""
        return values[:, None] if self.mask is not None else values.index_select(0, self.row)

    def masked(self, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.mask

    def to_engine(self) -> Tensor:
        """The log ratio of the old policy to the engine's."""
        return _wide(self.batch.old_log_probs) - _wide(self.batch.policies["rollout"])


def prepare(batch: Batch) -> Prepared:
    wide, lengths = _wide(batch.log_probs).dtype, batch.offsets.diff()
    labels = {name: of.to(lengths.device) for name, of in batch.labels.items()}
    of_rows = {n: of for n, of in labels.items() if of.dtype == torch.int64}
    strata = {n: Elements(of, of.bincount().to(wide), of.bincount(lengths)[of].to(wide)) for n, of in of_rows.items()}
    # The inverse of the normal equations of crossed factors, up to a constant between them.
    crossed = [torch.nn.functional.one_hot(of_rows[n]).double() for n in ("domain", "modality") if n in of_rows]
    factors = torch.cat(crossed or [lengths.double()[:, None]], 1)
    return Prepared(
        batch=batch,
        mask=None if batch.mask is None else batch.mask.to(wide),
        row=torch.repeat_interleave(lengths),
        length=lengths.to(wide),
        strata=strata,
        image=labels.get("image_token"),
        crossing=torch.linalg.pinv(factors.T @ factors, hermitian=True).to(wide),
    )


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


# ---------------------------------------------------------------- the losses, of log ratios and advantages


def _clipped(x: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    """PPO's surrogate."""
    ratio = x.exp()
    return torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def _surrogate(x: Tensor, a: Tensor, b: Prepared, high: float = 0.2) -> Tensor:
    return b.masked(_clipped(x, b.spread(a), 0.2, high))


def _ppo(x: Tensor, a: Tensor, b: Prepared) -> Tensor:
    surrogate = _clipped(x, a, 0.2, 0.2)
    return -b.masked(torch.where(a < 0, torch.maximum(surrogate, 3.0 * a), surrogate)).sum() / b.batch.tokens


def _mis(x: Tensor, a: Tensor, b: Prepared) -> Tensor:
    ratio = b.sums(b.masked(b.to_engine())).exp()
    return -torch.where(ratio <= 3.0, b.sums(_surrogate(x, a, b, 0.28)) * ratio, 0.0).sum() / b.batch.tokens


Parts = Iterable[tuple[Tensor, Tensor]]  # residuals at trajectories, and the tokens of their elements


def _tower(drift: Tensor, b: Prepared, *names: str) -> Parts:
    """Trajectories, and strata one above the other."""
    strata = [b.strata[name] for name in names]
    means = [drift, *((s.sums(drift) / s.rows).index_select(0, s.of) for s in strata)]
    residuals = [*(fine - coarse for fine, coarse in pairwise(means)), means[-1]]
    return zip(residuals, [b.length, *(s.tokens for s in strata)], strict=True)


def _crossed(drift: Tensor, b: Prepared, *names: str) -> Parts:
    """The batch, trajectories, and strata that cross. Least squares separates the effects of those."""
    strata, whole = [b.strata[name] for name in names], drift.mean()
    beyond = drift - whole
    effects = (b.crossing @ torch.cat([s.sums(beyond) for s in strata])).split([len(s.rows) for s in strata])
    own = [(e - (e * s.rows).sum() / s.rows.sum())[s.of] for s, e in zip(strata, effects, strict=True)]
    rest = beyond - torch.stack(own).sum(0)
    return zip([whole, rest, *own], [b.length.sum(), b.length, *(s.tokens for s in strata)], strict=True)


def _aggregate(drift: Tensor, budget: float, rollback: Tensor) -> Tensor:
    """`g_agg` (eq:gagg_main): pass, roll back, zero."""
    size = drift.abs()
    return torch.where(size <= budget, drift, drift.sign() * (budget - rollback * (size - budget)).clamp(min=0))


def _fiberpo(x: Tensor, a: Tensor, b: Prepared, *names: str, parts: Callable[..., Parts] = _tower) -> Tensor:
    bound: Any = 0.05 if b.image is None else torch.where(b.image, x.new_tensor(0.02), x.new_tensor(0.05))

    def gated(values: Tensor, budget: float) -> tuple[Tensor, Tensor]:
        """Above tokens, and of tokens."""
        drift = b.sums(values) / b.length
        above = [_aggregate(part, budget, tokens) for part, tokens in parts(drift, b, *names)]
        return sum(above, torch.zeros_like(drift)), (values - b.spread(drift)).clamp(-bound, bound)

    x = b.masked(x)
    (up, own_up), (down, own_down) = gated(x.clamp(min=0), 0.2), gated((-x).clamp(min=0), 0.1)
    ratio = (b.spread(up - down) + (own_up - own_down)).exp()
    return -(b.sums(b.masked(ratio)) / b.length * a).mean()


BASELINES: dict[str, Callable[[Tensor, Tensor, Prepared], Tensor]] = {
    "ppo": _ppo,
    "grpo": lambda x, a, b: -(b.sums(_surrogate(x, a, b)) / b.length).mean(),
    "dapo": lambda x, a, b: -_surrogate(x, a, b, 0.28).sum() / b.batch.tokens,
    "dr_grpo": lambda x, a, b: -_surrogate(x, a, b).sum() / (1024 * len(b.length)),
    "tis": lambda x, a, b: -(_surrogate(x, a, b, 0.28) * b.to_engine().exp().clamp(max=2)).sum() / b.batch.tokens,
    "mis": _mis,
    "gspo": lambda x, a, b: -_clipped(b.sums(b.masked(x)) / b.length, a, 0.0003, 0.0004).mean(),
    "fiberpo": _fiberpo,
    "fiberpo_domain": lambda x, a, b: _fiberpo(x, a, b, "prompt_group", "domain"),
    "fiberpo_modal": lambda x, a, b: _fiberpo(x, a, b, "prompt_group"),
    "fiberpo_crossed": lambda x, a, b: _fiberpo(x, a, b, "domain", "modality", parts=_crossed),
}


def baseline(hierarchy: Hierarchy) -> Callable[[Tensor, Tensor, Tensor, Prepared], Tensor] | None:
    """The hand-written loss of a shipped hierarchy; None for any other hierarchy, even one with the same name.

    It takes log-probs, old log-probs and advantages, and widens those in half precision.
    """
    written = BASELINES.get(hierarchy.name)
    if written is None or load(hierarchy.name) != hierarchy:
        return None
    return lambda now, old, advantages, b: written(_wide(now) - _wide(old), _wide(advantages), b)
