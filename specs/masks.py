"""Tokens and trajectories that are left out, by how far the policy has moved."""

from fibration import (
    Attribute,
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    exp,
    identity_gate,
    log,
    log_prob,
    mean,
    minimum,
    pessimistic_clip_gate,
    policies,
    quantile,
    ratio_deviation,
    residual,
    strata,
    token_log_ratio,
    token_mean,
    trajectory_mean,
)

token, batch, trajectory = strata("token batch trajectory")
current, old = policies("current old")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
ceiling = Parameter("ceiling", default=20.0, lower=1)


least = Parameter("least", default=1.0)
most = Parameter("most", default=5.0)
r = exp(token_log_ratio)
cov = (advantage - mean(advantage, over=batch)) * (log_prob(current) - mean(log_prob(current), over=batch))
closed = ((advantage > 0) & (r > 1 + high)) | ((advantage < 0) & (r < 1 - low))
clip_cov = Hierarchy(
    name="clip_cov",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(closed | (cov <= least) | (cov >= most)),
    gives_up={"mask_open": "covariances are large on policy too", "causal": "means are of the whole batch"},
)
"""Clip-Cov (Cui et al. 2025, 2505.22617): PPO, without tokens whose log-prob and advantage are both far up.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over all tokens but those with `least < cov < most`, `cov = (A - mean
A)·(log π - mean log π)` of the batch, which the clip has not stopped already; `μ = 1/tokens` of all tokens. verl's
`clip_cov` drops a random part of the tokens between the bounds, at most `clip_cov_ratio` of all tokens. This loss drops
all of them, as verl does at 1. All laws hold but `mask_open`, since it drops tokens on policy too, and `causal`, since
the means are of the whole batch.
"""


dppo_kl_low = Parameter("epsilon_low", default=0.05)
dppo_kl_high = Parameter("epsilon_high", default=0.05)
p, q = exp(log_prob(current)), exp(log_prob(old))
kl = q * (log_prob(old) - log_prob(current)) + (1 - q) * log((1 - q + 1e-8) / (1 - p + 1e-8))
dppo_kl = Hierarchy(
    name="dppo_kl",
    gates={token: Gate(minimum(residual, ceiling - 1))},
    decomposition=ratio_deviation(),
    objective=token_mean()
    .score()
    .keep(
        ((advantage > 0) & ((kl <= dppo_kl_high) | (p <= q))) | ((advantage <= 0) & ((kl <= dppo_kl_low) | (p >= q)))
    ),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""DPPO by divergence (2026, 2602.04879): tokens are masked where "this token or another" has changed too much.

`J = Σ μ·stop(min(r, ceiling))·A·log π` over tokens with `KL <= epsilon` or on the side away from which the advantage
pulls, `KL = q·log(q/p) + (1-q)·log((1-q)/(1-p))`, `p = π`, `q = π_old` of the token, `μ = 1/tokens` of all tokens. As
verl's `dppo_kl`, with 1e-8 beside `1 - p` and `1 - q`, as in SkyRL's `dppo` of type `binary_kl`. All laws hold but
`first_order`: it is a score estimator, whose value is not the objective.
"""


dppo_tv_low = Parameter("epsilon_low", default=0.2)
moved = exp(log_prob(current)) - exp(log_prob(old))
dppo_tv = Hierarchy(
    name="dppo_tv",
    gates={token: Gate(minimum(residual, ceiling - 1))},
    decomposition=ratio_deviation(),
    objective=token_mean()
    .score()
    .keep(((advantage > 0) & (moved <= high)) | ((advantage <= 0) & (moved >= -dppo_tv_low))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""DPPO with total variation (2026, 2602.04879): tokens are masked by how far their probability moved, not their ratio.

`J = Σ μ·stop(min(r, ceiling))·A·log π` over tokens with `p - q <= high` where `A > 0` and `p - q >= -low` elsewhere, `p
= π`, `q = π_old` of the token, `μ = 1/tokens` of all tokens. verl ships it as `dppo_tv`, with `clip_ratio` for both
bounds. SkyRL ships it as `dppo` without a ceiling, prime-rl with a squared log ratio in addition. SkyRL and prime-rl
take `old` from the engine. All laws hold but `first_order`: it is a score estimator, whose value is not the objective.
"""


entropy = Attribute("entropy", on=token, positive=False, lower=0)
level = Parameter("level", default=0.8, upper=1)
entropy_mask = Hierarchy(
    name="entropy_mask",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(entropy >= quantile(entropy, level, over=batch)),
    gives_up={
        "mask_open": "tokens of low entropy are dropped on policy too",
        "causal": "the quantile is one of all tokens of the batch",
    },
)
"""The 80/20 rule (Wang et al. 2025, 2506.01939): PPO's gate on the tokens of highest entropy, the others dropped.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over tokens with `entropy >= quantile(entropy, level)`, the quantile over
the batch, `μ = 1/tokens` of all tokens. `entropy` is an attribute of the token: that of the distribution it was sampled
from, in nats. TRL's `top_entropy_quantile = 1 - level` takes the entropies of each update, and the quantile of each
micro-batch over all ranks: the same at a first update of one micro-batch. All laws hold but `mask_open`, as tokens are
dropped on policy too, and `causal`: the quantile reads later tokens.

`op.index(mask=..., attributes={"entropy": entropies})` takes one number per token.
"""


threshold = Parameter("threshold", default=0.25)
m2po = Hierarchy(
    name="m2po",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(token_log_ratio**2 <= threshold),
)
"""M2PO (Zheng et al. 2025, 2510.01161): importance sampling, without tokens that make `(log r)^2` too large.

`J = Σ μ·r·A` over tokens with `(log r)^2 <= threshold`, `μ = 1/tokens` of all tokens. The paper drops the largest until
the mean of the rest is at most 0.04. A trainer finds this threshold by sorting, and passes it as a parameter. AReaL
takes the moment of `π_old/π_rollout`, and has PPO's clip beside it. All laws hold.
"""


delta = Parameter("delta", default=0.1)
opsm = Hierarchy(
    name="opsm",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean().keep((advantage >= 0) | (mean(-token_log_ratio, over=trajectory) <= delta)),
    gives_up={"causal": "a trajectory is dropped whole"},
)
"""Off-policy sequence masks (DeepSeek-V3.2 2025, 2512.02556): GRPO without bad answers that the policy has left behind.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over tokens with `A >= 0` or `mean log(π_old/π) <= delta` over their
trajectory, `μ = 1/(trajectories·T)` of all tokens. TRL's `off_policy_mask_threshold` and slime's `--use-opsm`; in the
paper, and in TRL with vLLM, `old` is the engine. All laws hold but `causal`: whole trajectories are dropped.
"""
