"""Every shipped loss as people write one, from its source's formula; parameters that are not the declared ones.

`FUNCTIONS[name]` makes a padded function of the parameters. `LABELS` says of the other losses what a function of an
audit is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from support import spec

from oracles.published import PUBLISHED, Rows, trajectory_mean
from oracles.published_objectives import OBJECTIVES, Scored

Loss = Callable[..., Any]

# What a loss reads that no argument of an audit is.
LABELS = {
    "apc_obj": "which tokens have one prefix",
    "attenuated_domain": "the domain of rows",
    "attenuated_group": "the prompt group of rows, beside advantages",
    "entropy_mask": "entropies of tokens",
    "fiberpo_crossed": "two labels of rows",
    "fiberpo_domain": "the domain of rows",
    "fiberpo_domain_inward": "the domain of rows",
    "fiberpo_domain_inward_clip": "the domain of rows",
    "fiberpo_domain_tis": "the domain of rows",
    "fiberpo_experts": "the expert of tokens",
    "fiberpo_modal": "tokens of two kinds",
    "fiberpo_turns": "the turn of tokens",
    "gdpo": "two rewards per row",
    "hierarchical_grpo": "the domain of rows",
    "ppo_gae": "values of a critic, and rewards per token",
    "remax": "the reward of the greedy answer",
}
FACTOR = 1.1837  # of a declared number
OTHER: Mapping[str, Mapping[str, Any]] = {
    "cispo": {"epsilon_low": 0.3137, "epsilon_high": 0.2219},
    "bapo": {"c_low": 0.713, "c_high": 1.217},
    "dcpo": {"epsilon_low": 0.0237, "epsilon_high": 0.1437, "ceiling": 4.13},
    "clip_cov": {"least": 0.3137, "most": 0.8219},
    "geometric_mask": {"least": 0.9137, "most": 1.1219},
    "seq_mask_tis": {"least": 0.9137, "most": 1.1219},
    "token_veto": {"least": 0.6837, "most": 1.6219},
    "icepop": {"least": 0.8137, "most": 1.3219},
    "kl_cov": {"level": 0.81},
    "fipo": {"gamma": 0.7137, "ceiling": 2.513, "safety": 1.613},
    "prefix_is": {"ceiling": 1.2137},
    "fiberpo": {"C_trajectory": {"+": 0.2137, "-": 0.1219}, "epsilon": 0.0537},
    "fiberpo_inward": {"C_trajectory": {"+": 0.2137, "-": 0.1219}, "epsilon": 0.0537},
    "fiberpo_inward_clip": {"C_trajectory": {"+": 0.2137, "-": 0.1219}, "epsilon": 0.1837},
    "fiberpo_tis": {"C_trajectory": {"+": 0.2137, "-": 0.1219}, "epsilon": 0.0537},
    "dppo_kl": {"ceiling": 1.5137},
    "dppo_tv": {"ceiling": 1.5137},
    "ppo_nll": {"share": 0.2137},
}


def parameters(name: str) -> dict[str, Any]:
    return {p.name: FACTOR * p.default for p in spec(name).parameters.values() if not p.per_channel} | dict(
        OTHER.get(name, {})
    )


def _aligned(values, mask):
    """The tokens of each row first, in their order: sources count places."""
    return values.gather(1, (~mask.bool()).to(torch.int8).argsort(dim=1, stable=True))


def _rows(log_probs, old_log_probs, mask, advantages=None, rollout_log_probs=None):
    """Rows of a padded batch; policies that are not given are the old one."""
    a = torch.zeros(len(mask), dtype=log_probs.dtype) if advantages is None else advantages
    rollout = old_log_probs if rollout_log_probs is None else rollout_log_probs
    log_probs, old_log_probs, rollout, mask = (_aligned(t, mask) for t in (log_probs, old_log_probs, rollout, mask))
    return Rows(log_probs, log_probs.detach(), old_log_probs, rollout, a[:, None].expand_as(log_probs), mask.bool())


def _scored(rows, rewards=None, group_ids=None, reference=None, values=None, greedy=None, domain=None, teacher=None):
    some = torch.zeros(len(rows.mask), dtype=rows.log_prob.dtype) if rewards is None else rewards
    groups = tuple(range(len(rows.mask))) if group_ids is None else tuple(group_ids.tolist())
    return Scored(
        **vars(rows),
        reference=rows.old if reference is None else reference,
        rewards=some[:, None].expand_as(rows.mask),
        values=torch.zeros_like(rows.log_prob) if values is None else values,
        greedy=torch.zeros_like(some) if greedy is None else greedy,
        teacher=rows.old if teacher is None else teacher,
        entropy=torch.zeros_like(rows.log_prob),
        prompt_group=groups,
        domain=groups if domain is None else domain,
    )


def _of_advantages(name: str, given: Mapping[str, Any]) -> Loss:
    formula = (PUBLISHED | OWN).get(name)
    policies, h = set(spec(name).policies), spec(name)

    def of(log_probs, old_log_probs, advantages, mask, rollout_log_probs=None):
        rows = _rows(log_probs, old_log_probs, mask, advantages, rollout_log_probs)
        made = formula(rows, given) if formula is not None else OBJECTIVES[name](_scored(rows), given)
        return -made[0]

    def with_rollout(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        return of(log_probs, old_log_probs, advantages, mask, rollout_log_probs)

    def plain(log_probs, old_log_probs, advantages, mask):
        return of(log_probs, old_log_probs, advantages, mask)

    assert h.advantages is None
    return with_rollout if "rollout" in policies else plain


def _of_rewards(name: str, given: Mapping[str, Any], hidden: bool) -> Loss:
    """`hidden`: domains, values and greedy rewards are those of the number of the row."""
    formula, policies = OBJECTIVES[name], set(spec(name).policies)

    def more(rows):
        n = torch.arange(len(rows.mask), dtype=rows.log_prob.dtype)
        values = (0.3 + 0.1 * n)[:, None].expand_as(rows.mask)
        return dict(values=values, greedy=0.3 + 0.1 * n, domain=(0,) * len(rows.mask)) if hidden else {}

    def with_reference(log_probs, old_log_probs, ref_log_probs, rewards, mask, group_ids):
        rows = _rows(log_probs, old_log_probs, mask)
        scored = _scored(rows, rewards, group_ids, _aligned(ref_log_probs, mask), **more(rows))
        return -formula(scored, given)[0]

    def plain(log_probs, old_log_probs, rewards, mask, group_ids):
        return with_reference(log_probs, old_log_probs, old_log_probs, rewards, mask, group_ids)

    def with_teacher(log_probs, old_log_probs, teacher_log_probs, rewards, mask, group_ids):
        rows = _rows(log_probs, old_log_probs, mask)
        return -formula(_scored(rows, rewards, group_ids, teacher=_aligned(teacher_log_probs, mask)), given)[0]

    def of_teacher(log_probs, old_log_probs, teacher_log_probs, mask):
        return with_teacher(log_probs, old_log_probs, teacher_log_probs, None, mask, None)

    if "teacher" in policies:
        return of_teacher if name == "opd" else with_teacher
    return with_reference if "reference" in policies else plain


# ---------------------------------------------------------------- ours, of which no source has a formula


def _channels(b: Rows):
    for sign in (1, -1):
        part = torch.where(b.x >= 0, b.x, 0) if sign == 1 else torch.where(b.x < 0, -b.x, 0)
        yield sign, part, b.mean(part), (sign * b.advantages > 0)


def fiberpo_inward(b: Rows, p, slope=1):
    """Roll-backs of this slope, and clips, of what the advantage pushes out on its channel."""
    total = torch.zeros_like(b.x)
    for sign, part, drift, out in _channels(b):
        c, e = p["C_trajectory"]["+" if sign == 1 else "-"], p["epsilon"]
        back = torch.where(drift < 2 * c, (1 + slope) * c - slope * drift, (1 - slope) * c)
        gate = torch.where(out & (drift > c), back, drift)
        own = part - drift
        # a token's residual is pushed out if it goes on with its sign
        closed = torch.where(sign * b.advantages * own > 0, own.clamp(-e, e), own)
        total = total + sign * (gate + closed)
    return trajectory_mean(b, total.exp() * b.advantages), []


def fiberpo_inward_clip(b: Rows, p):
    return fiberpo_inward(b, p, slope=0)


def gspo_residual(b: Rows, p):
    s = b.mean(b.x)
    bounded = s.exp().clamp(1 - p["epsilon_low"], 1 + p["epsilon_high"])
    return trajectory_mean(b, bounded * (b.x - s).exp() * b.advantages), []


OWN = {f.__name__: f for f in (fiberpo_inward, fiberpo_inward_clip, gspo_residual)}


def function(name: str, given: Mapping[str, Any], hidden: bool = False) -> Loss:
    """A padded function of a loss, with these parameters."""
    return _of_advantages(name, given) if spec(name).advantages is None else _of_rewards(name, given, hidden)
