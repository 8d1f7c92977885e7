"""Losses as published, in float64 torch, written from papers and trainers and not from `specs`.

`PUBLISHED[name]` takes `Rows` and the parameters of the spec. It returns the objective `J` and conditions of tokens,
which tell the branches of the formula apart. A value that the source holds fixed reads `at`: the numbers of `log_prob`
without its gradient. So autograd and finite differences in `log_prob` differentiate the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Parameters = Mapping[str, Any]
Found = tuple[Tensor, list[Tensor]]


@dataclass(frozen=True)
class Rows:
    """A padded batch, `[rows, width]`: log-probs of the policies, advantages, and which places are tokens."""

    log_prob: Tensor
    at: Tensor
    old: Tensor
    rollout: Tensor
    advantages: Tensor
    mask: Tensor

    @property
    def x(self) -> Tensor:
        return self.log_prob - self.old

    @property
    def held(self) -> Tensor:
        return self.at - self.old

    @property
    def mismatch(self) -> Tensor:
        return self.old - self.rollout

    @property
    def length(self) -> Tensor:
        return self.mask.sum(-1, keepdim=True).double()

    def sum(self, values: Tensor) -> Tensor:
        return torch.where(self.mask, values, 0).sum(-1, keepdim=True)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.length

    def batch_mean(self, values: Tensor) -> Tensor:
        return values[self.mask].mean()

    def kept(self, keep: Tensor) -> Rows:
        return replace(self, mask=self.mask & keep)


def token_mean(b: Rows, terms: Tensor) -> Tensor:
    return b.sum(terms).sum() / b.mask.sum()


def trajectory_mean(b: Rows, terms: Tensor) -> Tensor:
    return b.mean(terms).mean()


def per_trajectory(b: Rows, terms: Tensor) -> Tensor:
    return b.sum(terms).sum() / len(b.mask)


def clipped(ratio: Tensor, a: Tensor, low: Any, high: Any) -> Tensor:
    return torch.minimum(ratio * a, torch.clamp(ratio, low, high) * a)


def either(condition: Tensor, yes: float, no: float) -> Tensor:
    """One of two numbers in float64, where `torch.where` would round them to float32."""
    return torch.where(condition, torch.tensor(yes, dtype=torch.float64), torch.tensor(no, dtype=torch.float64))


def ppo(b: Rows, p: Parameters) -> tuple[Tensor, list[Tensor]]:
    """Terms of tokens, and the branches of PPO's `min`."""
    low, high, r, a = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.held.exp(), b.advantages
    branches = [(a > 0) & (r > high), (a < 0) & (r < low), (a > 0) & (r < low), (a < 0) & (r > high)]
    return clipped(b.x.exp(), a, low, high), branches


def reinforce(b: Rows, p: Parameters) -> Found:
    return token_mean(b, b.advantages * b.log_prob), [b.advantages > 0]


def cispo(b: Rows, p: Parameters) -> Found:
    low, high, r = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.held.exp()
    return token_mean(b, r.clamp(low, high) * b.advantages * b.log_prob), [r > high, r < low]


def cispo_absolute(b: Rows, p: Parameters) -> Found:
    r = b.held.exp()
    return token_mean(b, r.clamp(max=p["ceiling"]) * b.advantages * b.log_prob), [r > p["ceiling"]]


def grpo(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    return trajectory_mean(b, terms), branches


def dapo(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    return token_mean(b, terms), branches


def dual_clip(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    a, top = b.advantages, p["ceiling"]
    terms = torch.where(a < 0, torch.maximum(terms, top * a), terms)
    return token_mean(b, terms), [*branches, (a < 0) & (b.held.exp() > top)]


def dr_grpo(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    return per_trajectory(b, terms) / p["length"], branches


def sapo(b: Rows, p: Parameters) -> Found:
    tau = either(b.advantages > 0, p["tau_pos"], p["tau_neg"])
    terms = 4 / tau * torch.sigmoid(tau * (b.x.exp() - 1)) * b.advantages
    return trajectory_mean(b, terms), [b.advantages > 0]


def truly_ppo(b: Rows, p: Parameters) -> Found:
    e, alpha, r, a = p["epsilon"], p["alpha"], b.x.exp(), b.advantages
    back = torch.where(r > 1 + e, -alpha * r + (1 + alpha) * (1 + e), -alpha * r + (1 + alpha) * (1 - e))
    back = torch.where((r - 1).abs() <= e, r, back)
    return token_mean(b, torch.minimum(r * a, back * a)), [(a > 0) & (r > 1 + e), (a < 0) & (r < 1 - e)]


def aspo(b: Rows, p: Parameters) -> Found:
    low, high, top = 1 - p["epsilon_low"], 1 + p["epsilon_high"], p["ceiling"]
    r, good = b.held.exp(), b.advantages >= 0
    weight = torch.where(good, (1 / r).clamp(max=top), r.clamp(max=top))
    open_ = torch.where(good, r <= high, r >= low)
    terms = torch.where(open_, weight * b.advantages * b.log_prob, 0)
    return token_mean(b, terms), [open_, good & (1 / r > top), ~good & (r > top), good]


def ce_gppo(b: Rows, p: Parameters) -> Found:
    low, high, a, r = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.advantages, b.x.exp()
    held = b.held.exp()
    down, up = (a < 0) & (held < low), (a > 0) & (held > high)
    ratio = torch.where(down, p["beta_low"] * low / held * r, torch.where(up, p["beta_high"] * high / held * r, r))
    return token_mean(b, ratio * a), [down, up]


def dcpo(b: Rows, p: Parameters) -> Found:
    q, a, r, top = b.old.exp(), b.advantages, b.x.exp(), p["ceiling"]
    low = (1 + (1 - 4 * p["epsilon_low"] / q).clamp(min=0).sqrt()) / 2
    high = ((1 + (1 + 4 * p["epsilon_high"] / q).sqrt()) / 2).clamp(max=top)
    terms = torch.minimum(r * a, torch.minimum(torch.maximum(r, low), high) * a)
    terms = torch.where(a < 0, torch.maximum(terms, top * a), terms)
    branches = [(a > 0) & (r > high), (a < 0) & (r < low), (a < 0) & (r > top), low == 0.5, high == top]
    return b.mean(terms).sum(), branches


def bapo(b: Rows, p: Parameters) -> Found:
    low, high, a, r = p["c_low"], p["c_high"], b.advantages, b.x.exp()
    return token_mean(b, clipped(r, a, low, high)), [(a > 0) & (r > high), (a < 0) & (r < low)]


# ---------------------------------------------------------------- sequences


def gspo(b: Rows, p: Parameters) -> Found:
    low, high, s, a = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.mean(b.x).exp(), b.mean(b.advantages)
    branches = [(a > 0) & (s > high), (a < 0) & (s < low), (a > 0) & (s < low), (a < 0) & (s > high)]
    return clipped(s, a, low, high).mean(), [c.expand_as(b.mask) for c in branches]


def gspo_token(b: Rows, p: Parameters) -> Found:
    low, high, a = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.advantages
    s = b.mean(b.held).exp()
    ratio = s * b.log_prob.exp() / b.at.exp()
    branches = [(a > 0) & (s > high), (a < 0) & (s < low), (a > 0) & (s < low), (a < 0) & (s > high)]
    return trajectory_mean(b, clipped(ratio, a, low, high)), branches


def gmpo(b: Rows, p: Parameters) -> Found:
    sign, a = b.advantages.sign(), b.mean(b.advantages)
    bounded = b.x.clamp(-p["epsilon_low"], p["epsilon_high"])
    least = sign * torch.minimum(sign * b.x, sign * bounded)
    return (a * b.mean(least).exp()).mean(), [(sign > 0) & (bounded < b.x), (sign < 0) & (bounded > b.x), least == b.x]


def fspo(b: Rows, p: Parameters) -> Found:
    """As the spec says it, with `Σ (T-1)·A` more than the paper's."""
    total, a, bound = b.sum(b.x), b.mean(b.advantages), p["band"] * b.length.sqrt()
    bounded = torch.minimum(torch.maximum(total, -bound), bound)
    objective = torch.minimum(total.exp() * a, bounded.exp() * a).mean() + ((b.length - 1) * a).mean()
    branches = [(a > 0) & (total > bound), (a < 0) & (total < -bound), (a < 0) & (total > bound)]
    return objective, [c.expand_as(b.mask) for c in branches]


def luspo(b: Rows, p: Parameters) -> Found:
    low, high, s, a = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.mean(b.x).exp(), b.mean(b.advantages)
    branches = [(a > 0) & (s > high), (a < 0) & (s < low)]
    return (b.length * clipped(s, a, low, high)).mean(), [c.expand_as(b.mask) for c in branches]


def vespo(b: Rows, p: Parameters) -> Found:
    good, log_w = b.advantages >= 0, b.sum(b.held)
    k, rate = either(good, p["k_pos"], p["k_neg"]), either(good, p["lambda_pos"], p["lambda_neg"])
    phi = rate.exp() * log_w.exp() ** k * (-rate * log_w.exp()).exp()
    return token_mean(b, phi * b.advantages * b.log_prob), [good]


def topr(b: Rows, p: Parameters) -> Found:
    good, w = b.advantages >= 0, b.sum(b.held).exp()
    weight = torch.where(good, 1, w.clamp(0, 1))
    return per_trajectory(b, weight * b.advantages * b.log_prob), [good, ~good & (w > 1), ~good & (w < 1)]


def dhpo(b: Rows, p: Parameters) -> Found:
    a, r, s = b.advantages, b.x.exp(), b.mean(b.x).exp()
    r_low, r_high = 1 - p["epsilon_low"], 1 + p["epsilon_high"]
    s_low, s_high = 1 - p["epsilon_low_sequence"], 1 + p["epsilon_high_sequence"]
    own, shared = clipped(r, a, r_low, r_high), clipped(s, a, s_low, s_high)
    branches = [(a > 0) & (r > r_high), (a < 0) & (r < r_low), (a > 0) & (s > s_high), (a < 0) & (s < s_low)]
    return trajectory_mean(b, p["share"] * own + (1 - p["share"]) * shared), branches


# ---------------------------------------------------------------- rollout engines


def tis(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.mismatch.exp()
    return token_mean(b, rho.clamp(max=p["ceiling"]) * terms), [*branches, rho > p["ceiling"]]


def sequence_tis(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.sum(b.mismatch).exp().expand_as(b.mask)
    return token_mean(b, rho.clamp(max=p["ceiling"]) * terms), [*branches, rho > p["ceiling"]]


def mis(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.sum(b.mismatch).exp().expand_as(b.mask)
    return token_mean(b, torch.where(rho <= p["ceiling"], rho * terms, 0)), [*branches, rho > p["ceiling"]]


def icepop(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.mismatch.exp()
    inside = (rho >= p["least"]) & (rho <= p["most"])
    return token_mean(b, torch.where(inside, rho * terms, 0)), [*branches, rho < p["least"], rho > p["most"]]


def geometric_mask(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.mean(b.mismatch).exp().expand_as(b.mask)
    inside = (rho >= p["least"]) & (rho <= p["most"])
    return token_mean(b.kept(inside), terms), [*branches, rho < p["least"], rho > p["most"]]


def seq_mask_tis(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.mean(b.mismatch).exp().expand_as(b.mask)
    inside = (rho >= p["least"]) & (rho <= p["most"])
    terms = torch.where(inside, b.mismatch.exp() * terms, 0)
    return token_mean(b, terms), [*branches, rho < p["least"], rho > p["most"]]


def token_veto(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    rho = b.mismatch.exp()
    wild = ((rho < p["least"]) | (rho > p["most"])) & b.mask
    dropped = wild.any(-1, keepdim=True).expand_as(b.mask)
    return token_mean(b.kept(~dropped), terms), [*branches, rho < p["least"], rho > p["most"], dropped, dropped & ~wild]


def decoupled_ppo(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    return token_mean(b, b.mismatch.exp() * terms), branches


def minirl(b: Rows, p: Parameters) -> Found:
    low, high, r, a = 1 - p["epsilon_low"], 1 + p["epsilon_high"], b.held.exp(), b.advantages
    weight = (b.at - b.rollout).exp()
    dropped = ((a > 0) & (r > high)) | ((a < 0) & (r < low))
    terms = torch.where(dropped, 0, weight.clamp(max=p["ceiling"]) * a * b.log_prob)
    return per_trajectory(b, terms), [(a > 0) & dropped, (a < 0) & dropped, weight > p["ceiling"]]


def aipo(b: Rows, p: Parameters) -> Found:
    weight = (b.at - b.rollout).exp()
    terms = weight.clamp(max=p["ceiling"]) * b.advantages * b.log_prob
    return token_mean(b, terms), [weight > p["ceiling"]]


def _fiberpo(b: Rows, p: Parameters) -> Tensor:
    """def:fiberpo_main: the budget of each trajectory's drift by its sign, and a clip of what its tokens add."""
    budget, total = p["C_trajectory"], torch.zeros_like(b.x)
    for sign, channel in ((1, "+"), (-1, "-")):
        part = torch.where(sign * b.x >= 0 if sign == 1 else b.x < 0, sign * b.x, 0)
        m, k, c = b.mean(part), b.length, budget[channel]
        back = torch.where(m < (1 + 1 / k) * c, c - k * (m - c), 0)
        gated = torch.where(m <= c, m, back) + torch.clamp(part - m, -p["epsilon"], p["epsilon"])
        total = total + sign * gated
    return total.exp()


def fiberpo(b: Rows, p: Parameters) -> Found:
    drift = b.mean(torch.where(b.x >= 0, b.x, 0))
    c = p["C_trajectory"]["+"]
    branches = [(drift > c).expand_as(b.mask), (b.x - drift).abs() > p["epsilon"]]
    return trajectory_mean(b, _fiberpo(b, p) * b.advantages), branches


def fiberpo_tis(b: Rows, p: Parameters) -> Found:
    rho = b.mismatch.exp()
    terms = rho.clamp(max=p["ceiling"]) * _fiberpo(b, p) * b.advantages
    return trajectory_mean(b, terms), [*fiberpo(b, p)[1], rho > p["ceiling"]]


# ---------------------------------------------------------------- masks


def dppo_tv(b: Rows, p: Parameters) -> Found:
    moved, r, good = b.at.exp() - b.old.exp(), b.held.exp(), b.advantages > 0
    valid = torch.where(good, moved <= p["epsilon_high"], moved >= -p["epsilon_low"])
    terms = torch.where(valid, r.clamp(max=p["ceiling"]) * b.advantages * b.log_prob, 0)
    return token_mean(b, terms), [good & ~valid, ~good & ~valid, r > p["ceiling"]]


def dppo_kl(b: Rows, p: Parameters) -> Found:
    new, old, r, good = b.at.exp(), b.old.exp(), b.held.exp(), b.advantages > 0
    kl = old * (b.old - b.at) + (1 - old) * ((1 - old + 1e-8) / (1 - new + 1e-8)).log()
    valid = torch.where(good, (kl <= p["epsilon_high"]) | (new <= old), (kl <= p["epsilon_low"]) | (new >= old))
    terms = torch.where(valid, r.clamp(max=p["ceiling"]) * b.advantages * b.log_prob, 0)
    far = kl > p["epsilon_high"]
    return token_mean(b, terms), [good & ~valid, ~good & ~valid, far & valid, r > p["ceiling"]]


def opsm(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    kl = b.mean(b.old - b.at)
    kept = (b.advantages >= 0) | (kl <= p["delta"])
    far = (kl > p["delta"]).expand_as(b.mask)
    return trajectory_mean(b, torch.where(kept, terms, 0)), [*branches, kept, far & kept]


def m2po_threshold(b: Rows, most: float) -> float:
    """The largest `(log r)^2` that is kept where the largest are dropped until the mean of the rest is at most `most`."""
    moments = b.held[b.mask].square().sort().values
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1)
    return float(moments[means <= most][-1])


def m2po(b: Rows, p: Parameters) -> Found:
    moments = b.held.square()
    dropped = moments > p["threshold"]
    return token_mean(b, torch.where(dropped, 0, b.x.exp() * b.advantages)), [dropped]


def clip_cov(b: Rows, p: Parameters) -> Found:
    terms, branches = ppo(b, p)
    a, r = b.advantages, b.held.exp()
    cov = (a - b.batch_mean(a)) * (b.at - b.batch_mean(b.at))
    closed = torch.clamp(r, 1 - p["epsilon_low"], 1 + p["epsilon_high"]) * a < r * a
    dropped = (cov > p["least"]) & (cov < p["most"]) & ~closed
    return token_mean(b, torch.where(dropped, 0, terms)), [
        *branches,
        dropped,
        cov > p["most"],
        closed & (cov > p["least"]),
    ]


PUBLISHED: Mapping[str, Callable[[Rows, Parameters], Found]] = {"ppo": dual_clip} | {
    f.__name__: f
    for f in (
        reinforce, cispo, cispo_absolute, grpo, dapo, dr_grpo, sapo, truly_ppo, aspo, ce_gppo, dcpo, bapo,
        gspo, gspo_token, gmpo, fspo, luspo, vespo, topr, dhpo,
        tis, sequence_tis, mis, icepop, geometric_mask, seq_mask_tis, token_veto, decoupled_ppo, minirl, aipo, fiberpo, fiberpo_tis,
        dppo_tv, dppo_kl, opsm, m2po, clip_cov,
    )
}  # fmt: skip
