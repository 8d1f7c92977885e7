"""Loss functions as people write them: right ones in unusual words, and ones with a mistake.

A mistake: the function, the loss that it should be, and the property that it breaks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import logsigmoid, pad, relu, softplus


@dataclass(frozen=True)
class Mistake:
    function: Callable[..., Any]
    like: str
    breaks: str
    parameters: dict[str, Any] = field(default_factory=dict)


def ratio(log_probs, old_log_probs):
    return (log_probs - old_log_probs).exp()


def clipped(r, a, low=0.2, high=0.2):
    return torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)


def per_token(lp, old, adv, low=0.2, high=0.2):
    return -clipped(ratio(lp, old), adv[:, None], low, high)


def token_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def row_mean(values, mask):
    return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


MISTAKES: dict[str, Mistake] = {}
RIGHT: dict[str, tuple[Callable[..., Any], str]] = {}


def planted(like: str, breaks: str, **parameters: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        MISTAKES[function.__name__] = Mistake(function, like, breaks, parameters)
        return function

    return note


def right(like: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        RIGHT[function.__name__] = function, like
        return function

    return note


# ---------------------------------------------------------------- one row each

EQUAL = {"epsilon_low": 0.2, "epsilon_high": 0.2}
# What is made of the values of tokens and of the mask: the loss that it should be, the property that it breaks.
SUMMED: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "mean_over_masked_places": ("dapo", "padding", lambda v, mask: (v * mask).mean()),
    "row_mean_over_the_padded_width": ("grpo", "padding", lambda v, mask: (v * mask).mean(-1).mean()),
    "one_token_too_many": ("grpo", "normaliser", lambda v, mask: ((v * mask).sum(-1) / (mask.sum(-1) + 1)).mean()),
    "one_token_too_many_in_the_batch": ("dapo", "normaliser", lambda v, mask: (v * mask).sum() / (mask.sum() + 1)),
    "mean_of_means": ("dapo", "normaliser", row_mean),
    "mean_of_all_tokens": ("grpo", "normaliser", token_mean),
    "sum_in_place_of_mean": ("dapo", "normaliser", lambda v, mask: (v * mask).sum()),
    "sum_over_rows": ("dapo", "normaliser", lambda v, mask: (v * mask).sum() / len(mask)),
    "means_are_summed": ("grpo", "normaliser", lambda v, mask: row_mean(v, mask) * len(mask)),
    "divided_by_the_group_size_again": ("grpo", "normaliser", lambda v, mask: row_mean(v, mask) / 8),
    "scaled_by_accumulation": ("dapo", "normaliser", lambda v, mask: 4 * token_mean(v, mask)),
    "divided_by_the_widest_row": ("grpo", "padding", lambda v, mask: ((v * mask).sum(-1) / mask.shape[-1]).mean()),
    "root_of_the_length": (
        "grpo", "normaliser", lambda v, mask: ((v * mask).sum(-1) / mask.sum(-1).clamp(min=1).sqrt()).mean(),
    ),
    "a_large_epsilon": ("dapo", "normaliser", lambda v, mask: (v * mask).sum() / (mask.sum() + 0.01)),
    "no_mask": ("dapo", "mask", lambda v, mask: v.sum() / mask.sum()),
    "mask_shifted_by_one": ("dapo", "mask", lambda v, mask: (v * pad(mask, (1, 0))[:, :-1]).sum() / mask.sum()),
    "nan_times_zero": ("dapo", "mask", lambda v, mask: (v * mask).sum() / mask.sum()),
    "empty_row_is_nan": ("grpo", "rows", lambda v, mask: ((v * mask).sum(-1) / mask.sum(-1)).mean()),
    "dropped_minus": ("dapo", "sign", lambda v, mask: -token_mean(v, mask)),
}  # fmt: skip
# What a token's value is made of, by its ratio and its advantage, in place of `min(r·A, clip(r)·A)` of `dapo`.
SURROGATES: dict[str, Callable[..., Any]] = {
    "max_for_min": lambda r, a: torch.maximum(r * a, r.clamp(0.8, 1.2) * a),
    "no_upper_bound": lambda r, a: torch.minimum(r * a, r.clamp(min=0.8) * a),
    "no_lower_bound": lambda r, a: torch.minimum(r * a, r.clamp(max=1.2) * a),
    "bounds_of_log_ratios": lambda r, a: torch.minimum(r * a, r.log().clamp(-0.2, 0.2).exp() * a),
    "clipped_alone": lambda r, a: r.clamp(0.8, 1.2) * a,
    "no_clip": lambda r, a: r * a,
    "clip_without_its_advantage": lambda r, a: torch.minimum(r, r.clamp(0.8, 1.2)) * a,
    "bounds_as_ratios": lambda r, a: torch.minimum(r * a, r.clamp(0.2, 1.2) * a),
    "drops_both_sides": lambda r, a: r * a * ((r.detach() - 1).abs() <= 0.2),
}
# The values of tokens, of which `dapo` takes the mean: the property that they break.
VALUES: dict[str, tuple[str, Callable[..., Any]]] = {
    "squared_ratio": ("normaliser", lambda lp, old, adv: -clipped(ratio(lp, old) ** 2, adv[:, None])),
    "ratio_upside_down": ("sign", lambda lp, old, adv: per_token(old, lp, adv)),
    "size_of_the_advantage": ("sign", lambda lp, old, adv: per_token(lp, old, adv.abs())),
    "advantage_squared": ("first_update", lambda lp, old, adv: per_token(lp, old, adv * adv.abs())),
    "advantages_standardised_again": (
        "first_update", lambda lp, old, adv: per_token(lp, old, (adv - adv.mean()) / (adv.std(correction=0) + 1e-6)),
    ),
    "advantages_clamped": ("first_update", lambda lp, old, adv: per_token(lp, old, adv.clamp(-1, 1))),
    "an_entropy_bonus": ("first_update", lambda lp, old, adv: per_token(lp, old, adv) + 0.01 * lp),
    "a_gradient_through_the_advantage": (
        "first_update", lambda lp, old, adv: per_token(lp, old, adv) - 0.1 * adv[:, None] * lp.square(),
    ),
    "difference_of_probabilities": ("first_update", lambda lp, old, adv: -clipped(1 + lp.exp() - old.exp(), adv[:, None])),
    "advantages_of_other_rows": ("rows", lambda lp, old, adv: per_token(lp, old, adv.sort().values)),
    "ratio_in_half_precision": (
        "finite", lambda lp, old, adv: -clipped(ratio(lp, old).half().to(lp.dtype), adv[:, None]),
    ),
    "power_of_a_huge_ratio": ("finite", lambda lp, old, adv: per_token(lp, old, adv) + 0.0 * ratio(lp, old).pow(8)),
}  # fmt: skip


def _of_the_sum(reduced):
    return lambda lp, old, adv, mask: reduced(per_token(lp, old, adv), mask)


def _of_values(values):
    return lambda lp, old, adv, mask: token_mean(values(lp, old, adv), mask)


def _of_ratios(surrogate):
    return _of_values(lambda lp, old, adv: -surrogate(ratio(lp, old), adv[:, None]))


def sequence_mistake(ratio_of):
    return lambda lp, old, adv, mask: -clipped(ratio_of(lp - old, mask).exp(), adv).mean()


MISTAKES |= {n: Mistake(_of_the_sum(of), like, breaks) for n, (like, breaks, of) in SUMMED.items()}
MISTAKES |= {n: Mistake(_of_ratios(of), "dapo", "sides", EQUAL) for n, of in SURROGATES.items()}
MISTAKES |= {n: Mistake(_of_values(of), "dapo", breaks) for n, (breaks, of) in VALUES.items()}
MISTAKES |= {
    "low_and_high_exchanged": Mistake(
        _of_values(lambda lp, old, adv: per_token(lp, old, adv, 0.28, 0.2)), "dapo", "sides", {**EQUAL, "epsilon_high": 0.28}
    ),
    "no_dual_clip": Mistake(_of_values(per_token), "ppo", "sides", {**EQUAL, "ceiling": 3.0}),
    "ratio_detached": Mistake(
        _of_values(lambda lp, old, adv: -clipped(ratio(lp, old).detach(), adv[:, None], 9, 9) * lp), "dapo", "sides", EQUAL
    ),
    "sequence_ratio_over_the_padded_width": Mistake(
        sequence_mistake(lambda x, mask: (x * mask).mean(-1)), "gspo", "padding", EQUAL
    ),
    "sequence_ratio_without_its_root": Mistake(
        sequence_mistake(lambda x, mask: (x * mask).sum(-1)), "gspo", "normaliser", EQUAL
    ),
    "sequence_ratio_without_mask": Mistake(
        sequence_mistake(lambda x, mask: x.sum(-1) / mask.sum(-1).clamp(min=1)), "gspo", "mask", EQUAL
    ),
}  # fmt: skip


# ---------------------------------------------------------------- of several lines


@planted("reinforce", "first_update")
def counts_tokens_with_an_advantage(lp, adv, mask):
    a = adv[:, None] * mask
    return -(a * lp * mask).sum() / ((a.abs() > 0.7).sum() + 1)


@planted("grpo", "padding")
def mask_inside_exp(lp, old, adv, mask):
    values = -clipped(((lp - old) * mask).exp(), adv[:, None])
    return (values.sum(-1) / mask.sum(-1).clamp(min=1)).mean()


@planted("dapo", "mask")
def mask_of_one_policy(lp, old, adv, mask):
    r = (lp * mask - old).exp()
    return token_mean(-clipped(r, adv[:, None]), torch.ones_like(mask)) * mask.numel() / mask.sum()


@planted("dapo", "mask")
def log_of_the_mask(lp, old, adv, mask):
    return (per_token(lp + (mask + 1e-9).log(), old, adv)).sum() / mask.sum()


@planted("dapo", "rows")
def spread_of_one_token(lp, old, adv, mask):
    x = torch.where(mask > 0, lp - old, torch.nan)
    found = [row[~row.isnan()] for row in x.detach()]
    spread = torch.stack([((row - row.mean()).square().sum() / (len(row) - 1)).sqrt() for row in found])
    return token_mean(per_token(lp, old, adv / (1 + spread)), mask)


@planted("dapo", "rows")
def sums_down_the_batch(lp, old, adv, mask):
    x = ((lp - old).detach() * mask).cumsum(0)
    return token_mean(per_token(lp, old, adv) * (0.1 * x).exp(), mask)


@planted("dapo", "causal")
def a_weight_that_sees_later_tokens(lp, old, adv, mask):
    x = (lp - old).detach() * mask
    later = x.flip(-1).cumsum(-1).flip(-1)
    return token_mean(per_token(lp, old, adv) * later.exp().clamp(max=2), mask)


@planted("dapo", "causal")
def a_weight_of_the_whole_batch(lp, old, adv, mask):
    x = ((lp - old).detach() * mask).sum() / mask.sum()
    return token_mean(per_token(lp, old, adv) * x.exp(), mask)


@planted("dapo", "causal")
def sequence_ratios_of_tokens(lp, old, adv, mask):
    x = ((lp - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return token_mean(-clipped(x.exp()[:, None], adv[:, None]).expand_as(mask), mask)


@planted("dapo", "precision")
def log_ratio_in_bfloat16(lp, old, adv, mask):
    x = (lp - old).float().to(torch.bfloat16 if lp.dtype == torch.float32 else torch.float32).to(lp.dtype)
    return token_mean(-clipped(x.exp(), adv[:, None]), mask)


@planted("dapo", "inputs")
def changes_the_advantages(lp, old, adv, mask):
    adv.mul_(1.0).add_(0.5)
    adv.sub_(0.25)
    return token_mean(per_token(lp, old, adv - 0.25), mask)


@planted("dapo", "inputs")
def changes_the_old_log_probs(lp, old, adv, mask):
    with torch.no_grad():
        kept = old.clone()
        old.zero_()
    return token_mean(per_token(lp, kept, adv), mask)


@planted("dapo", "inputs")
def views_what_is_not_contiguous(lp, old, adv, mask):
    flat = per_token(lp.view(-1, 1), old.view(-1, 1), adv.repeat_interleave(lp.shape[1]))
    return token_mean(flat, mask.reshape(-1, 1))


# ---------------------------------------------------------------- rewards and the reference


@planted("rloo", "baseline")
def own_reward_in_the_baseline(log_probs, rewards, mask, group_ids):
    same = (group_ids[:, None] == group_ids).to(rewards.dtype)
    a = rewards - same @ rewards / same.sum(-1)
    return -((a[:, None] * log_probs * mask).sum(-1)).mean()


@planted("grpo_rewards", "baseline")
def spread_of_the_batch(log_probs, old_log_probs, rewards, mask, group_ids):
    a = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)
    return row_mean(per_token(log_probs, old_log_probs, a), mask)


@planted("rloo", "baseline")
def rewards_less_nothing(log_probs, rewards, mask, group_ids):
    return -((rewards[:, None] * log_probs * mask).sum(-1)).mean()


@planted("dr_grpo_rewards", "baseline", length=16.0)
def standardised_after_all(log_probs, old_log_probs, rewards, mask, group_ids):
    same = (group_ids[:, None] == group_ids).to(rewards.dtype)
    mean = same @ rewards / same.sum(-1)
    spread = (same @ rewards.square() / same.sum(-1) - mean.square()).clamp(min=0).sqrt()
    return (per_token(log_probs, old_log_probs, (rewards - mean) / (spread + 1e-6)) * mask).sum() / len(mask) / 16


def _k1(log_probs, old_log_probs, advantages, mask, ref_log_probs):
    return row_mean(per_token(log_probs, old_log_probs, advantages) + 0.04 * (log_probs - ref_log_probs), mask)


def _away(log_probs, old_log_probs, advantages, mask, ref_log_probs):
    d = ref_log_probs - log_probs
    return row_mean(per_token(log_probs, old_log_probs, advantages) - 0.04 * (d.exp() - d - 1), mask)


def _k3_exchanged(log_probs, old_log_probs, advantages, mask, ref_log_probs):
    d = log_probs - ref_log_probs
    return row_mean(per_token(log_probs, old_log_probs, advantages) + 0.04 * (d.exp() - d - 1), mask)


def _attached(weight, body):
    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        return token_mean(weight(log_probs - rollout_log_probs) * body(log_probs, old_log_probs, advantages), mask)

    return loss


def _held(log_probs, old_log_probs, advantages):
    return -ratio(log_probs, old_log_probs).clamp(0.5, 1.28).detach() * advantages[:, None] * log_probs


TRUNCATED = _attached(lambda x: x.exp().clamp(max=2), per_token)


def _k3_exchanged_of_rewards(log_probs, old_log_probs, rewards, mask, group_ids, ref_log_probs):
    same = (group_ids[:, None] == group_ids).to(rewards.dtype)
    return _k3_exchanged(log_probs, old_log_probs, rewards - same @ rewards / same.sum(-1), mask, ref_log_probs)


MISTAKES["k3_exchanged_of_rewards"] = Mistake(_k3_exchanged_of_rewards, "grpo_k3", "reference")
MISTAKES["an_attached_weight"] = Mistake(TRUNCATED, "tis", "engine")
MISTAKES["an_attached_weight_without_bound"] = Mistake(_attached(torch.exp, per_token), "tis", "engine")
MISTAKES["an_attached_weight_of_log_probs"] = Mistake(_attached(lambda x: x.exp().clamp(max=2), _held), "tis", "engine")
MISTAKES["k3_exchanged"] = Mistake(_k3_exchanged, "grpo", "reference")
MISTAKES["k1_as_a_loss"] = Mistake(_k1, "grpo", "reference")
MISTAKES["pushed_away_from_the_reference"] = Mistake(_away, "grpo", "reference")


# ---------------------------------------------------------------- right, in unusual words


@right("dapo")
def losses_of_the_larger(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    values = torch.max(-a * r, -a * torch.clamp(r, 1 - 0.2, 1 + 0.28))
    return torch.where(mask.bool(), values, 0.0).sum() / mask.sum()


@right("dapo")
def by_where(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    closed = ((a > 0) & (r > 1.2)) | ((a < 0) & (r < 0.8))
    return token_mean(-torch.where(closed, (r.clamp(0.8, 1.2) * a).detach(), r * a), mask)


@right("dapo")
def by_row_then_tokens(lp, old, adv, mask):
    values = (per_token(lp, old, adv) * mask).sum(-1)
    return values.sum() / mask.sum(-1).sum()


@right("dapo")
def chosen_tokens(lp, old, adv, mask):
    return per_token(lp, old, adv)[mask.bool()].mean()


@right("dapo")
def with_metrics(lp, old, adv, mask):
    values = per_token(lp, old, adv, 0.2, 0.28)
    return token_mean(values, mask), (ratio(lp, old) > 1.28).float().mean(), {"kl": 0.0}


@right("dapo")
def in_a_mapping(lp, old, adv, mask):
    return {"loss": token_mean(per_token(lp, old, adv), mask), "tokens": mask.sum()}


@right("dapo")
def as_verl_writes_it(old_log_prob, log_prob, advantages, response_mask, cliprange=0.2):
    kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    values = torch.maximum(-advantages * kl.exp(), -advantages * kl.exp().clamp(1 - cliprange, 1 + cliprange))
    return (values * response_mask).sum() / (response_mask.sum() + 1e-8)


@right("grpo")
def as_trl_writes_it(per_token_logps, old_per_token_logps, advantages, completion_mask):
    coef_1 = torch.exp(per_token_logps - old_per_token_logps)
    coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.2)
    values = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1))
    return ((values * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1.0)).mean()


@right("grpo")
def row_by_row(lp, old, adv, mask):
    losses = [per_token(x[None], o[None], a[None])[0][m.bool()] for x, o, a, m in zip(lp, old, adv, mask, strict=True)]
    return torch.stack([v.mean() if len(v) else lp.sum() * 0 for v in losses]).mean()


@right("grpo")
def with_weights_of_rows(lp, old, adv, mask):
    weights = mask / mask.sum(-1, keepdim=True).clamp(min=1) / len(mask)
    return (weights * per_token(lp, old, adv)).sum()


@right("grpo")
def packed(log_probs, old_log_probs, advantages, cu_seqlens):
    lengths = cu_seqlens.diff()
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    values = -clipped(ratio(log_probs, old_log_probs), advantages[row])
    return (values / lengths[row]).sum() / len(lengths)


@right("gspo")
def sequence_ratio(lp, old, adv, mask):
    x = ((lp - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return -clipped(x.exp(), adv, 0.03, 0.04).mean()


@right("gspo")
def sequence_ratio_by_stop_gradient(lp, old, adv, mask):
    x = ((lp - old).detach() * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    r = (x + lp - lp.detach()).exp()
    return row_mean(-clipped(r, adv[:, None], 0.03, 0.04), mask)


@right("reinforce")
def plain_policy_gradient(log_probs, advantages, mask):
    return -(log_probs * advantages[:, None] * mask).sum() / mask.sum()


@right("reinforce")
def ratio_to_itself(log_probs, advantages, mask):
    return token_mean(-(log_probs - log_probs.detach()).exp() * advantages[:, None], mask)


@right("cispo")
def a_held_weight(lp, old, adv, mask):
    weight = ratio(lp, old).clamp(0.5, 1.28).detach()
    return token_mean(-weight * adv[:, None] * lp, mask)


@right("ppo")
def a_third_bound(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    low = torch.maximum(-a * r, -a * r.clamp(0.8, 1.2))
    return token_mean(torch.where(a < 0, torch.minimum(-a * 3.0, low), low), mask)


@right("dr_grpo")
def a_constant_length(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).sum() / (len(mask) * 4096)


@right("sapo")
def a_soft_gate(lp, old, adv, mask):
    a = adv[:, None]
    tau = torch.where(a > 0, torch.tensor(1.0, dtype=lp.dtype), torch.tensor(1.05, dtype=lp.dtype))
    return row_mean(-4 / tau * torch.sigmoid(tau * (ratio(lp, old) - 1)) * a, mask)


@right("tis")
def a_truncated_weight(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
    weight = (old_log_probs - rollout_log_probs).exp().clamp(max=2.0).detach()
    return token_mean(weight * per_token(log_probs, old_log_probs, advantages, 0.2, 0.28), mask)


@right("rloo")
def leave_one_out(log_probs, rewards, mask, group_ids):
    same = (group_ids[:, None] == group_ids).to(rewards.dtype)
    n = same.sum(-1)
    a = torch.where(n > 1, rewards - (same @ rewards - rewards) / (n - 1).clamp(min=1), 0.0)
    return -(a[:, None] * log_probs * mask).sum(-1).mean()


@right("grpo_k3")
def as_trl_with_a_reference(per_token_logps, old_per_token_logps, advantages, completion_mask, ref_per_token_logps):
    d = ref_per_token_logps - per_token_logps
    values = per_token(per_token_logps, old_per_token_logps, advantages) + 0.04 * (d.exp() - d - 1)
    return row_mean(values, completion_mask)


def _max_with_a_reference(log_probs, old_log_probs, advantages, mask, ref_log_probs):
    r, a, d = ratio(log_probs, old_log_probs), advantages[:, None], ref_log_probs - log_probs
    return row_mean(-torch.maximum(r * a, r.clamp(0.8, 1.2) * a) + 0.04 * (d.exp() - d - 1), mask)


MISTAKES["max_for_min_with_a_reference"] = Mistake(_max_with_a_reference, "grpo_k3", "sides")


@right("dapo")
def with_a_mask_of_bools(lp, old, adv, mask):
    return torch.where(mask, per_token(lp, old, adv), 0).sum() / mask.sum()


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


RIGHT["a_class"] = Clipped(0.1, 0.3), "dapo"
RIGHT["a_module"] = Module(), "grpo"
RIGHT["a_partial"] = functools.partial(_general, low=0.15, high=0.25), "dapo"


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
