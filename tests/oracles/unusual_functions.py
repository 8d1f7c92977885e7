"""Right loss functions in unusual words: einsum, loops, log-space, nested tensors, defaults, classes, partial."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import logsigmoid, relu, softplus

UNUSUAL: dict[str, tuple[Callable[..., Any], str]] = {}


def right(like: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        UNUSUAL[function.__name__] = function, like
        return function

    return note


@right("dapo")
def by_einsum(lp, old, adv, mask):
    r = (lp - old).exp()
    values = torch.minimum(torch.einsum("bt,b->bt", r, adv), torch.einsum("bt,b->bt", r.clamp(0.8, 1.25), adv))
    return -torch.einsum("bt,bt->", values, mask) / torch.einsum("bt->", mask)


@right("grpo")
def loops_over_tokens(lp, old, adv, mask):
    total = lp.new_zeros(())
    for i in range(len(lp)):
        row = lp.new_zeros(())
        for t in range(lp.shape[1]):
            if mask[i, t]:
                r = torch.exp(lp[i, t] - old[i, t])
                row = row - torch.min(r * adv[i], torch.clamp(r, 0.8, 1.2) * adv[i])
        total = total + row / mask[i].sum().clamp(min=1)
    return total / len(lp)


@right("dapo")
def by_masked_select(lp, old, adv, mask):
    kept = mask.bool()
    x, a = (lp - old).masked_select(kept), adv[:, None].expand_as(lp).masked_select(kept)
    return torch.maximum(-a * x.exp(), -a * x.exp().clamp(0.8, 1.3)).mean()


@right("dapo")
def clipped_in_log_space(lp, old, adv, mask):
    """The clip of the ratio is one of its logarithm."""
    low, high = torch.log(torch.tensor([0.8, 1.28], dtype=lp.dtype))
    x, a = torch.where(mask.bool(), lp - old, 0.0), adv[:, None]
    x = torch.where(a > 0, torch.minimum(x, high), torch.where(a < 0, torch.maximum(x, low), x))
    return -(torch.exp(x) * a * mask).sum() / mask.sum()


@right("grpo")
def of_nested_tensors(lp, old, adv, mask):
    kept = mask.bool()
    rows = torch.nested.as_nested_tensor([v[m] for v, m in zip(lp, kept, strict=True)], layout=torch.strided)
    olds = torch.nested.as_nested_tensor([v[m] for v, m in zip(old, kept, strict=True)], layout=torch.strided)
    losses = []
    for new, before, a in zip(rows.unbind(), olds.unbind(), adv, strict=True):
        r = (new - before).exp()
        losses.append(-torch.minimum(r * a, r.clamp(0.8, 1.2) * a).mean() if len(r) else new.sum())
    return torch.stack(losses).mean()


@right("dapo")
def with_options(lp, old, adv, mask, *, low=0.2, high=0.28, reduction="token-mean", scale=1.0):
    r, a = (lp - old).exp(), adv.unsqueeze(-1)
    values = -torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a) * mask
    return scale * (values.sum() / mask.sum() if reduction == "token-mean" else values.mean())


class Clipped:
    """A loss with its bounds."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high, self.__name__ = low, high, "Clipped"

    def __call__(self, log_probs, old_log_probs, advantages, mask):
        r, a = (log_probs - old_log_probs).exp(), advantages[:, None]
        return -(torch.minimum(r * a, r.clamp(1 - self.low, 1 + self.high) * a) * mask).sum() / mask.sum()


class Module(torch.nn.Module):
    """A loss as a module."""

    def forward(self, log_probs, old_log_probs, advantages, mask):
        r, a = (log_probs - old_log_probs).exp(), advantages[:, None]
        values = -torch.minimum(r * a, r.clamp(0.8, 1.2) * a)
        return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def _general(log_probs, old_log_probs, advantages, mask, low, high):
    return Clipped(low, high)(log_probs, old_log_probs, advantages, mask)


UNUSUAL["a_class"] = Clipped(0.1, 0.3), "dapo"
UNUSUAL["a_module"] = Module(), "grpo"
UNUSUAL["a_partial"] = functools.partial(_general, low=0.15, high=0.25), "dapo"


@right("dapo")
def a_surrogate(lp, old, adv, mask):
    """The gradient is made by hand, and multiplied with log-probs; the value is put back."""
    r, a, kept = (lp - old).exp().detach(), adv[:, None], mask.sum()
    open_ = torch.where(a > 0, r <= 1.2, r >= 0.8)
    surrogate = -(open_ * r * a * lp * mask).sum() / kept
    value = -(torch.minimum(r * a, r.clamp(0.8, 1.2) * a) * mask).sum() / kept
    return surrogate - surrogate.detach() + value


@right("dapo")
def by_relu(lp, old, adv, mask):
    """`min(r·A, clip(r)·A)` is `r·A` less what is beyond the bound."""
    r, a = (lp - old).exp(), adv[:, None]
    beyond = relu(a) * relu(r - 1.28) + relu(-a) * relu(0.8 - r)
    return -((r * a - beyond) * mask).sum() / mask.sum()


@right("dapo")
def by_the_sign(lp, old, adv, mask):
    r, s = (lp - old).exp(), adv.sign()[:, None]
    values = adv.abs()[:, None] * torch.minimum(s * r, s * r.clamp(0.8, 1.2))
    return (values * mask).sum().neg().div(mask.sum())


@right("sapo")
def softly_by_softplus(lp, old, adv, mask):
    """`σ(z) = exp(−softplus(−z))`."""
    a = adv[:, None]
    tau = 1.0 + 0.05 * (a <= 0).to(lp.dtype)
    values = 4 / tau * torch.exp(-softplus(-tau * ((lp - old).exp() - 1))) * a
    return -((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


@right("sapo")
def softly_by_logsigmoid(lp, old, adv, mask):
    a = adv[:, None]
    tau = torch.where(a > 0, torch.full_like(a, 1.3), torch.full_like(a, 1.7))
    values = torch.exp(logsigmoid(tau * torch.expm1(lp - old)) + torch.log(4 / tau)) * a
    return -((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


@right("gspo")
def sequences_by_cumsum(lp, old, adv, mask):
    """The last of the running sums is that of the row."""
    total, n = ((lp - old) * mask).cumsum(-1)[:, -1], mask.cumsum(-1)[:, -1].clamp(min=1)
    s = torch.exp(total / n)
    return torch.maximum(-s * adv, -s.clamp(1 - 0.03, 1 + 0.04) * adv).mean()


@right("gspo")
def sequences_by_products(lp, old, adv, mask):
    """The geometric mean of ratios, as a product of powers."""
    n = mask.sum(-1, keepdim=True).clamp(min=1)
    s = torch.where(mask.bool(), (lp - old).exp().pow(1 / n), 1.0).prod(-1)
    return -torch.minimum(s * adv, s.clamp(0.97, 1.04) * adv).mean()


@right("cispo")
def held_by_no_grad(lp, old, adv, mask):
    with torch.no_grad():
        weight = adv[:, None] * (lp - old).exp().clip(0.7, 1.28) * mask
    return -torch.tensordot(weight, lp, dims=2) / mask.sum()


@right("reinforce")
def by_a_dot_product(log_probs, advantages, mask):
    return -torch.dot((log_probs * mask).sum(-1), advantages) / mask.sum()


@right("dr_grpo")
def a_budget_of_tokens(lp, old, adv, mask, budget=512):
    r, a = (lp - old).exp(), adv[:, None]
    values = torch.minimum(r * a, r.clamp(0.8, 1.2) * a).masked_fill(mask == 0, 0.0)
    return -(values / budget).sum(1).mean(0)


@right("ppo")
def three_bounds_at_once(lp, old, adv, mask):
    """Where A < 0 the ratio is held between its lower bound and the third one."""
    r, a = (lp - old).exp(), adv[:, None]
    values = torch.where(a > 0, r.clamp(max=1.2), r.clamp(0.8, 2.5)) * a
    return -(values * mask).sum() / mask.sum()


@right("rloo")
def a_baseline_of_others_by_loops(log_probs, rewards, mask, group_ids):
    losses = []
    for i, g in enumerate(group_ids.tolist()):
        others = [rewards[j] for j, h in enumerate(group_ids.tolist()) if h == g and j != i]
        baseline = torch.stack(others).mean() if others else rewards[i]
        losses.append(-(rewards[i] - baseline) * (log_probs[i] * mask[i]).sum())
    return torch.stack(losses).mean()


@right("dr_grpo_rewards")
def centred_by_one_hot(log_probs, old_log_probs, rewards, mask, group_ids):
    member = torch.nn.functional.one_hot(torch.unique(group_ids, return_inverse=True)[1]).to(rewards.dtype)
    a = (rewards - member @ ((member.T @ rewards) / member.sum(0)))[:, None]
    r = (log_probs - old_log_probs).exp()
    return -(torch.minimum(r * a, r.clamp(0.8, 1.2) * a) * mask).sum() / (len(mask) * 16)
