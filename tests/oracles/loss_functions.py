"""Loss functions as people write them: right ones in unusual words, and ones with a mistake.

A mistake: the function, the loss that it should be, and the property that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad


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


# ---------------------------------------------------------------- what the loss divides by


@planted("dapo", "padding")
def mean_over_masked_places(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).mean()


@planted("grpo", "padding")
def row_mean_over_the_padded_width(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).mean(-1).mean()


@planted("grpo", "normaliser")
def one_token_too_many(lp, old, adv, mask):
    return ((per_token(lp, old, adv) * mask).sum(-1) / (mask.sum(-1) + 1)).mean()


@planted("dapo", "normaliser")
def one_token_too_many_in_the_batch(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).sum() / (mask.sum() + 1)


@planted("dapo", "normaliser")
def mean_of_means(lp, old, adv, mask):
    return row_mean(per_token(lp, old, adv), mask)


@planted("grpo", "normaliser")
def mean_of_all_tokens(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv), mask)


@planted("dapo", "normaliser")
def sum_in_place_of_mean(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).sum()


@planted("dapo", "normaliser")
def sum_over_rows(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).sum() / len(lp)


@planted("grpo", "normaliser")
def means_are_summed(lp, old, adv, mask):
    return ((per_token(lp, old, adv) * mask).sum(-1) / mask.sum(-1).clamp(min=1)).sum()


@planted("grpo", "normaliser")
def divided_by_the_group_size_again(lp, old, adv, mask):
    return row_mean(per_token(lp, old, adv), mask) / 8


@planted("dapo", "normaliser")
def scaled_by_accumulation(lp, old, adv, mask):
    return 4 * token_mean(per_token(lp, old, adv), mask)


@planted("grpo", "padding")
def divided_by_the_widest_row(lp, old, adv, mask):
    return ((per_token(lp, old, adv) * mask).sum(-1) / mask.shape[-1]).mean()


@planted("grpo", "normaliser")
def root_of_the_length(lp, old, adv, mask):
    return ((per_token(lp, old, adv) * mask).sum(-1) / mask.sum(-1).clamp(min=1).sqrt()).mean()


@planted("dapo", "normaliser")
def a_large_epsilon(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).sum() / (mask.sum() + 0.01)


@planted("gspo", "padding", epsilon_low=0.2, epsilon_high=0.2)
def sequence_ratio_over_the_padded_width(lp, old, adv, mask):
    return -clipped(((lp - old) * mask).mean(-1).exp(), adv).mean()


@planted("gspo", "normaliser", epsilon_low=0.2, epsilon_high=0.2)
def sequence_ratio_without_its_root(lp, old, adv, mask):
    return -clipped(((lp - old) * mask).sum(-1).exp(), adv).mean()


@planted("dapo", "normaliser")
def squared_ratio(lp, old, adv, mask):
    return token_mean(-clipped(ratio(lp, old) ** 2, adv[:, None]), mask)


@planted("reinforce", "first_update")
def counts_tokens_with_an_advantage(lp, adv, mask):
    a = adv[:, None] * mask
    return -(a * lp * mask).sum() / ((a.abs() > 0.7).sum() + 1)


# ---------------------------------------------------------------- masks


@planted("dapo", "mask")
def mask_shifted_by_one(lp, old, adv, mask):
    shifted = pad(mask, (1, 0))[:, :-1]
    return (per_token(lp, old, adv) * shifted).sum() / mask.sum()


@planted("dapo", "mask")
def no_mask(lp, old, adv, mask):
    return per_token(lp, old, adv).sum() / mask.sum()


@planted("grpo", "padding")
def mask_inside_exp(lp, old, adv, mask):
    values = -clipped(((lp - old) * mask).exp(), adv[:, None])
    return (values.sum(-1) / mask.sum(-1).clamp(min=1)).mean()


@planted("dapo", "mask")
def mask_of_one_policy(lp, old, adv, mask):
    r = (lp * mask - old).exp()
    return token_mean(-clipped(r, adv[:, None]), torch.ones_like(mask)) * mask.numel() / mask.sum()


@planted("gspo", "mask", epsilon_low=0.2, epsilon_high=0.2)
def sequence_ratio_without_mask(lp, old, adv, mask):
    return -clipped(((lp - old).sum(-1) / mask.sum(-1).clamp(min=1)).exp(), adv).mean()


@planted("dapo", "mask")
def nan_times_zero(lp, old, adv, mask):
    return (per_token(lp, old, adv) * mask).sum() / mask.sum()


@planted("dapo", "mask")
def log_of_the_mask(lp, old, adv, mask):
    return (per_token(lp + (mask + 1e-9).log(), old, adv)).sum() / mask.sum()


@planted("grpo", "rows")
def empty_row_is_nan(lp, old, adv, mask):
    return ((per_token(lp, old, adv) * mask).sum(-1) / mask.sum(-1)).mean()


@planted("dapo", "rows")
def spread_of_one_token(lp, old, adv, mask):
    x = torch.where(mask > 0, lp - old, torch.nan)
    found = [row[~row.isnan()] for row in x.detach()]
    spread = torch.stack([((row - row.mean()).square().sum() / (len(row) - 1)).sqrt() for row in found])
    return token_mean(per_token(lp, old, adv / (1 + spread)), mask)


# ---------------------------------------------------------------- clips


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def max_for_min(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    return token_mean(-torch.maximum(r * a, r.clamp(0.8, 1.2) * a), mask)


@planted("dapo", "sides")
def low_and_high_exchanged(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv, 0.28, 0.2), mask)


MISTAKES["low_and_high_exchanged"].parameters.update(epsilon_low=0.2, epsilon_high=0.28)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def no_upper_bound(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    return token_mean(-torch.minimum(r * a, r.clamp(min=0.8) * a), mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def no_lower_bound(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    return token_mean(-torch.minimum(r * a, r.clamp(max=1.2) * a), mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def bounds_of_log_ratios(lp, old, adv, mask):
    x, a = lp - old, adv[:, None]
    return token_mean(-torch.minimum(x.exp() * a, x.clamp(-0.2, 0.2).exp() * a), mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def clipped_alone(lp, old, adv, mask):
    return token_mean(-ratio(lp, old).clamp(0.8, 1.2) * adv[:, None], mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def no_clip(lp, old, adv, mask):
    return token_mean(-ratio(lp, old) * adv[:, None], mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def clip_without_its_advantage(lp, old, adv, mask):
    r = ratio(lp, old)
    return token_mean(-torch.minimum(r, r.clamp(0.8, 1.2)) * adv[:, None], mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def bounds_as_ratios(lp, old, adv, mask):
    r, a = ratio(lp, old), adv[:, None]
    return token_mean(-torch.minimum(r * a, r.clamp(0.2, 1.2) * a), mask)


@planted("ppo", "sides", epsilon_low=0.2, epsilon_high=0.2, ceiling=3.0)
def no_dual_clip(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv), mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def ratio_detached(lp, old, adv, mask):
    return token_mean(-clipped(ratio(lp, old).detach(), adv[:, None], 9, 9) * lp, mask)


@planted("dapo", "sides", epsilon_low=0.2, epsilon_high=0.2)
def drops_both_sides(lp, old, adv, mask):
    r = ratio(lp, old)
    near = (r.detach() - 1).abs() <= 0.2
    return token_mean(-r * adv[:, None] * near, mask)


# ---------------------------------------------------------------- signs, advantages, ratios


@planted("dapo", "sign")
def dropped_minus(lp, old, adv, mask):
    return -token_mean(per_token(lp, old, adv), mask)


@planted("dapo", "sign")
def ratio_upside_down(lp, old, adv, mask):
    return token_mean(per_token(old, lp, adv), mask)


@planted("dapo", "sign")
def size_of_the_advantage(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv.abs()), mask)


@planted("dapo", "first_update")
def advantage_squared(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv * adv.abs()), mask)


@planted("dapo", "first_update")
def advantages_standardised_again(lp, old, adv, mask):
    return token_mean(per_token(lp, old, (adv - adv.mean()) / (adv.std(correction=0) + 1e-6)), mask)


@planted("dapo", "first_update")
def advantages_clamped(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv.clamp(-1, 1)), mask)


@planted("dapo", "first_update")
def an_entropy_bonus(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv) + 0.01 * lp, mask)


@planted("dapo", "first_update")
def a_gradient_through_the_advantage(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv) - 0.1 * adv[:, None] * lp.square(), mask)


@planted("dapo", "first_update")
def difference_of_probabilities(lp, old, adv, mask):
    return token_mean(-clipped(1 + lp.exp() - old.exp(), adv[:, None]), mask)


@planted("dapo", "rows")
def advantages_of_other_rows(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv.sort().values), mask)


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


# ---------------------------------------------------------------- precision and inputs


@planted("dapo", "finite")
def ratio_in_half_precision(lp, old, adv, mask):
    r = ratio(lp, old).half().to(lp.dtype)
    return token_mean(-clipped(r, adv[:, None]), mask)


@planted("dapo", "precision")
def log_ratio_in_bfloat16(lp, old, adv, mask):
    x = (lp - old).float().to(torch.bfloat16 if lp.dtype == torch.float32 else torch.float32).to(lp.dtype)
    return token_mean(-clipped(x.exp(), adv[:, None]), mask)


@planted("dapo", "finite")
def power_of_a_huge_ratio(lp, old, adv, mask):
    return token_mean(per_token(lp, old, adv) + 0.0 * ratio(lp, old).pow(8), mask)


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
