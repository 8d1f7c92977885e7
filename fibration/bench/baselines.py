"""The losses as a careful engineer writes them in eager torch, for comparison: float32, autograd for the gradient.

They are as fast as eager torch allows: masked sums over dim 1 of a padded batch, segment sums over a packed one,
advantages of trajectories multiplied in after the sum over tokens, nothing computed twice. Half-precision log-probs are
widened first. At a log ratio of exactly 0 the sign-split losses have slope 2 here, not 1 (docs/bench.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fibration.bench.shapes import Problem
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import load

SHORT = 4  # tokens per trajectory up to which index_add is faster than segment_reduce on a CPU


@dataclass(frozen=True)
class Prepared:
    """The prepared tensors of a batch, as a trainer has them. `mask` is float `[B, T]`, None for a packed batch."""

    mask: Tensor | None
    offsets: Tensor  # int64 [B + 1]
    row: Tensor  # int64 [N], empty for a padded batch
    length: Tensor  # [B], in tokens
    tokens: int
    group: Tensor  # int64 [B]
    domain: Tensor  # int64 [B]
    group_rows: Tensor  # [G], trajectories
    domain_rows: Tensor  # [D], trajectories
    group_domain: Tensor  # int64 [G]
    group_tokens: Tensor  # [G]
    domain_tokens: Tensor  # [D]
    image: Tensor  # bool, in the tokens' shape
    modality: Tensor  # int64 [B]
    modality_rows: Tensor  # [M], trajectories
    modality_tokens: Tensor  # [M]
    crossing: Tensor  # [D + M, D + M]: from sums over domains and modalities to their effects
    policies: Mapping[str, Tensor]  # further log-probs, in the tokens' shape

    def sums(self, values: Tensor) -> Tensor:
        """Sums over the tokens of every trajectory. Padded values must be 0 under the mask."""
        if self.mask is not None:
            return values.sum(1)
        if self.tokens <= SHORT * len(self.length):
            return torch.zeros_like(self.length).index_add(0, self.row, values)
        return torch.segment_reduce(values, "sum", offsets=self.offsets, unsafe=True)

    def spread(self, values: Tensor) -> Tensor:
        """Copies values of trajectories to their tokens."""
        return values[:, None] if self.mask is not None else values.index_select(0, self.row)

    def masked(self, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.mask


Loss = Callable[[Tensor, Tensor, Tensor, Prepared], Tensor]


def prepare(problem: Problem) -> Prepared:
    """Prepare a batch, once per batch like an index. Labels that a loss does not have are empty."""
    device = problem.device
    wide = _wide(problem.log_probs).dtype
    lengths = torch.from_numpy(problem.lengths).to(device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    labels = {k: torch.as_tensor(v, device=device) for k, v in problem.labels.items()}
    group, domain, modality = (labels.get(k, none) for k in ("prompt_group", "domain", "modality"))
    packed = problem.mask is None

    def total(codes: Tensor, values: Tensor) -> Tensor:
        size = int(codes.max()) + 1 if len(codes) else 0
        return torch.zeros(size, dtype=wide, device=device).index_add(0, codes, values[: len(codes)].to(wide))

    group_rows = total(group, torch.ones_like(lengths))
    group_domain = torch.zeros(len(group_rows), dtype=torch.int64, device=device)
    if len(domain) and len(group):
        group_domain[group] = domain
    return Prepared(
        mask=None if problem.mask is None else problem.mask.to(wide),
        offsets=problem.offsets,
        row=torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths) if packed else none,
        length=lengths.to(wide),
        tokens=problem.tokens,
        group=group,
        domain=domain,
        group_rows=group_rows,
        domain_rows=total(domain, torch.ones_like(lengths)),
        group_domain=group_domain,
        group_tokens=total(group, lengths),
        domain_tokens=total(domain, lengths),
        image=labels.get("image_token", none.bool()),
        modality=modality,
        modality_rows=total(modality, torch.ones_like(lengths)),
        modality_tokens=total(modality, lengths),
        crossing=_crossing(domain, modality).to(wide),
        policies=problem.policies,
    )


def _crossing(domain: Tensor, modality: Tensor) -> Tensor:
    """The inverse of the normal equations of two crossed factors, up to a constant between them."""
    if not len(domain) or not len(modality):
        return torch.zeros(0)
    a, b = (torch.nn.functional.one_hot(codes).double() for codes in (domain, modality))
    both = torch.cat([a, b], 1)
    return torch.linalg.pinv(both.T @ both, hermitian=True)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


# ---------------------------------------------------------------- gates on tokens alone


def _clipped(x: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """PPO's surrogate per token."""
    ratio = x.exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def _by_token(advantages: Tensor, log_probs: Tensor, b: Prepared) -> Tensor:
    advantages = _wide(advantages)
    return advantages if advantages.shape == log_probs.shape else b.spread(advantages)


def ppo(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    a = _by_token(advantages, log_probs, b)
    surrogate = _clipped(_wide(log_probs) - _wide(old), a, 0.2, 0.2)
    surrogate = torch.where(a < 0, torch.maximum(surrogate, 3.0 * a), surrogate)
    return -b.masked(surrogate).sum() / b.tokens


def _masked_surrogate(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared, high: float = 0.2) -> Tensor:
    return b.masked(_clipped(_wide(log_probs) - _wide(old), _by_token(advantages, log_probs, b), 0.2, high))


def grpo(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    return -(b.sums(_masked_surrogate(log_probs, old, advantages, b)) / b.length).mean()


def dapo(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    return -_masked_surrogate(log_probs, old, advantages, b, high=0.28).sum() / b.tokens


def dr_grpo(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    return -_masked_surrogate(log_probs, old, advantages, b).sum() / (1024 * len(b.length))


# ---------------------------------------------------------------- three policies


def tis(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    weight = (_wide(old) - _wide(b.policies["rollout"])).exp().clamp(max=2.0)
    return -(_masked_surrogate(log_probs, old, advantages, b, high=0.28) * weight).sum() / b.tokens


def mis(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    ratio = b.sums(b.masked(_wide(old) - _wide(b.policies["rollout"]))).exp()
    kept = b.sums(_masked_surrogate(log_probs, old, advantages, b, high=0.28)) * ratio
    return -torch.where(ratio <= 3.0, kept, 0.0).sum() / b.tokens


# ---------------------------------------------------------------- gates on trajectories and above


def gspo(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    drift = b.sums(b.masked(_wide(log_probs) - _wide(old))) / b.length
    return -_clipped(drift, _wide(advantages), 0.0003, 0.0004).mean()


def _aggregate(drift: Tensor, budget: float, rollback: Tensor) -> Tensor:
    """`g_agg` (eq:gagg_main): pass, roll back, zero."""
    size = drift.abs()
    return torch.where(size <= budget, drift, drift.sign() * (budget - rollback * (size - budget)).clamp(min=0))


def _drifts(log_probs: Tensor, old: Tensor, b: Prepared) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Upward and downward drifts per token, then their means per trajectory."""
    x = b.masked(_wide(log_probs) - _wide(old))
    up, down = x.clamp(min=0), (-x).clamp(min=0)
    return up, down, b.sums(up) / b.length, b.sums(down) / b.length


def _objective(base: Tensor, drifts: tuple[Tensor, Tensor, Tensor, Tensor], advantages: Tensor, b: Prepared) -> Tensor:
    """`-J`, from the gated drift of every trajectory, + less −."""
    up, down, mean_up, mean_down = drifts
    own = (up - b.spread(mean_up)).clamp(-0.05, 0.05) - (down - b.spread(mean_down)).clamp(-0.05, 0.05)
    ratio = (b.spread(base) + own).exp()
    return -(b.sums(b.masked(ratio)) / b.length * _wide(advantages)).mean()


def fiberpo(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    drifts = _drifts(log_probs, old, b)
    base = _aggregate(drifts[2], 0.2, b.length) - _aggregate(drifts[3], 0.1, b.length)
    return _objective(base, drifts, advantages, b)


def fiberpo_domain(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    drifts = _drifts(log_probs, old, b)
    base = _levels(drifts[2], 0.2, b) - _levels(drifts[3], 0.1, b)
    return _objective(base, drifts, advantages, b)


def _levels(drift: Tensor, budget: float, b: Prepared) -> Tensor:
    """The sum of the gated residuals of a trajectory, of its group and of its domain: `[B]`."""
    group = torch.zeros_like(b.group_rows).index_add(0, b.group, drift)
    domain = torch.zeros_like(b.domain_rows).index_add(0, b.group_domain, group) / b.domain_rows
    group = group / b.group_rows
    gated = _aggregate(group - domain.index_select(0, b.group_domain), budget, b.group_tokens)
    gated = gated + _aggregate(domain, budget, b.domain_tokens).index_select(0, b.group_domain)
    own = _aggregate(drift - group.index_select(0, b.group), budget, b.length)
    return own + gated.index_select(0, b.group)


# ---------------------------------------------------------------- a tree and a quiver


def fiberpo_modal(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    up, down, mean_up, mean_down = drifts = _drifts(log_probs, old, b)
    bound = torch.where(b.image, up.new_tensor(0.02), up.new_tensor(0.05))

    def clipped(values: Tensor, mean: Tensor) -> Tensor:
        own = values - b.spread(mean)
        return torch.minimum(torch.maximum(own, -bound), bound)

    base = _grouped(drifts[2], 0.2, b) - _grouped(drifts[3], 0.1, b)
    ratio = (b.spread(base) + clipped(up, mean_up) - clipped(down, mean_down)).exp()
    return -(b.sums(b.masked(ratio)) / b.length * _wide(advantages)).mean()


def _grouped(drift: Tensor, budget: float, b: Prepared) -> Tensor:
    """The sum of the gated residual of a trajectory and the gated drift of its group: `[B]`."""
    group = torch.zeros_like(b.group_rows).index_add(0, b.group, drift) / b.group_rows
    own = _aggregate(drift - group.index_select(0, b.group), budget, b.length)
    return own + _aggregate(group, budget, b.group_tokens).index_select(0, b.group)


def fiberpo_crossed(log_probs: Tensor, old: Tensor, advantages: Tensor, b: Prepared) -> Tensor:
    drifts = _drifts(log_probs, old, b)
    base = _crossed(drifts[2], 0.2, b) - _crossed(drifts[3], 0.1, b)
    return _objective(base, drifts, advantages, b)


def _crossed(drift: Tensor, budget: float, b: Prepared) -> Tensor:
    """The sum of the gated residuals of a trajectory, of its domain and modality, and of the batch: `[B]`.

    Least squares separates the effects of domains and modalities.
    """
    whole = drift.mean()
    beyond = drift - whole
    by_domain = torch.zeros_like(b.domain_rows).index_add(0, b.domain, beyond)
    by_modality = torch.zeros_like(b.modality_rows).index_add(0, b.modality, beyond)
    effects = b.crossing @ torch.cat([by_domain, by_modality])
    domain, modality = effects[: len(b.domain_rows)], effects[len(b.domain_rows) :]
    domain = domain - (domain * b.domain_rows).sum() / b.domain_rows.sum()
    modality = modality - (modality * b.modality_rows).sum() / b.modality_rows.sum()
    fitted = domain.index_select(0, b.domain) + modality.index_select(0, b.modality)
    gated = _aggregate(whole, budget, b.length.sum()) + _aggregate(beyond - fitted, budget, b.length)
    gated = gated + _aggregate(domain, budget, b.domain_tokens).index_select(0, b.domain)
    return gated + _aggregate(modality, budget, b.modality_tokens).index_select(0, b.modality)


BASELINES: dict[str, Loss] = {
    f.__name__: f
    for f in (ppo, grpo, dapo, dr_grpo, tis, mis, gspo, fiberpo, fiberpo_domain, fiberpo_modal, fiberpo_crossed)
}


def baseline(hierarchy: Hierarchy) -> Loss | None:
    """The hand-written loss of a shipped hierarchy; None for any other hierarchy, even one with the same name."""
    written = BASELINES.get(hierarchy.name)
    return written if written is not None and load(hierarchy.name) == hierarchy else None
