"""An engine samples that is not quite the policy: a third policy, weights and masks between the two."""

from fibration import (
    Hierarchy,
    Parameter,
    advantage,
    constant_normaliser,
    exp,
    load,
    log_prob,
    mean,
    minimum,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    some,
    strata,
    token_log_ratio,
    token_mean,
    total,
    zero_gate,
)

token, trajectory = strata("token trajectory")
current, rollout, old = policies("current rollout old")
low = Parameter("epsilon_low", default=0.2, upper=1)
ceiling = Parameter("ceiling", default=2.0, lower=1)
high = Parameter("epsilon_high", default=0.28)
least = Parameter("least", default=0.99, upper=1)
most = Parameter("most", default=1.01, lower=1)
rho = exp(log_prob(old) - log_prob(rollout))  # of a token, between engine and policy


aipo_ceiling = Parameter("ceiling", default=4.0, lower=1)
aipo = Hierarchy(
    name="aipo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score().weigh(minimum(exp(log_prob(current) - log_prob(rollout)), aipo_ceiling)),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""AIPO (LlamaRL, Wu et al. 2025, 2505.24034): REINFORCE with a capped ratio to the engine, some updates behind.

`J = Σ μ·stop(min(π/π_rollout, ceiling))·A·log π`, `μ = 1/tokens`. The weight has a cap and no lower bound, and the loss
has no third policy. SkyRL's `rollout_is` drops tokens outside a band. Its comment says that the gradient stays the
same; it changes. With the engine as `old` it is `cispo_absolute`. All laws hold but `identity` and `first_order`: it is
a score estimator, whose value is not the objective.
"""


decoupled_ppo_high = Parameter("epsilon_high", default=0.2)
decoupled_ppo = Hierarchy(
    name="decoupled_ppo",
    gates={token: pessimistic_clip_gate(low, decoupled_ppo_high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(exp(log_prob(old) - log_prob(rollout))),
)
"""Decoupled PPO (Hilton et al. 2021, 2110.00641; AReaL 2025, 2505.24298): near one policy, sampled by another.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)`, `ρ = π_old/π_rollout` of the token: `old` is the proximal policy,
`rollout` the behaviour policy, which may be many updates behind; `μ = 1/tokens`. If AReaL drops or caps `ρ`, the loss
is `icepop` or `tis`. All laws hold.
"""


weight = minimum(exp(log_prob(old) - log_prob(rollout)), ceiling)
fiberpo_domain_tis = load("fiberpo_domain").replace(
    name="fiberpo_domain_tis", objective=load("fiberpo_domain").objective.weigh(weight)
)
"""FiberPO-Domain (def:fiberpo_main, def:fiberpo_domain) under engine mismatch: tokens weighed as in `tis`.

`J = Σ μ·min(ρ, ceiling)·𝒢(r)·A`, `ρ = π_old/π_rollout` of the token: budgets limit the drift since `old`, and the
weight corrects for the rollout engine. All laws hold but `inward`.
"""


fiberpo_tis = load("fiberpo").replace(name="fiberpo_tis", objective=load("fiberpo").objective.weigh(weight))
"""FiberPO (def:fiberpo_main) under engine mismatch: tokens weighed as in `tis`.

`J = Σ μ·min(ρ, ceiling)·𝒢(r)·A`, `ρ = π_old/π_rollout` of the token: budgets limit the drift since `old`, and the
weight corrects for the rollout engine. All laws hold but `inward`.
"""


mean_ratio = exp(mean(log_prob(old) - log_prob(rollout), over=trajectory))
geometric_mask = Hierarchy(
    name="geometric_mask",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep((mean_ratio >= least) & (mean_ratio <= most), normaliser="kept"),
    gives_up={"causal": "a trajectory is dropped whole"},
)
"""Geometric masks (Liu et al. 2025): PPO, without trajectories whose mean ratio to the engine leaves a band.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories with `least <= exp(mean log ρ) <= most`, `ρ =
π_old/π_rollout`, `μ = 1/tokens` of those kept. SkyRL's `sequence_mask_metric=geometric`. verl's
`rollout_rs=seq_mean_k1` bounds `1/ρ`: it keeps `[1/most, 1/least]`, and its pages say `[least, most]`. All laws hold
but `causal`: whole trajectories are dropped.
"""


icepop_least = Parameter("least", default=0.5, upper=1)
icepop_most = Parameter("most", default=5.0, lower=1)
icepop = Hierarchy(
    name="icepop",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(rho).keep((rho >= icepop_least) & (rho <= icepop_most)),
)
"""IcePop (Ling Team 2025, 2510.18855): as `tis`, and tokens on which training and engine disagree are dropped.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)` over tokens with `least <= ρ <= most`, `ρ = π_old/π_rollout` of the
token, `μ = 1/tokens` of all tokens. TRL's `token_mask`, verl's `rollout_is_threshold="0.5_5"`, `icepop` of slime,
NeMo-RL and OpenRLHF; SkyRL's `token_mask_eps_low` masks without a weight, and counts kept tokens. All laws hold.
"""


minirl_high = Parameter("epsilon_high", default=0.27)
minirl_ceiling = Parameter("ceiling", default=5.0, lower=1)
r = exp(token_log_ratio)
minirl = Hierarchy(
    name="minirl",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1)
    .score()
    .weigh(minimum(exp(log_prob(current) - log_prob(rollout)), minirl_ceiling))
    .keep(((advantage > 0) & (r <= 1 + minirl_high)) | ((advantage <= 0) & (r >= 1 - low))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""MiniRL (Zheng et al. 2025, 2512.01374): REINFORCE with a capped ratio to the engine, within PPO's clip.

`J = Σ μ·stop(min(π/π_rollout, ceiling))·A·log π` over tokens that PPO's clip passes, `r <= 1 + high` where `A > 0` and
`r >= 1 - low` elsewhere, with `r = π/π_old`; `μ = 1/trajectories`, since the paper divides by no length. The formula is
from excerpts of the paper. All laws hold but `identity` and `first_order`: it is a score estimator, whose value is not
the objective.
"""


mis_ceiling = Parameter("ceiling", default=3.0, lower=1)
mis_rho = exp(total(log_prob(old) - log_prob(rollout), over=trajectory))
mis = Hierarchy(
    name="mis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(mis_rho).keep(mis_rho <= mis_ceiling),
    gives_up={"causal": "a trajectory is weighed whole, or dropped"},
)
"""MIS (Liu et al. 2025, "When Speed Kills Stability"): as `sequence_tis`, but trajectories above the cap are dropped.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories with `ρ <= ceiling`, `ρ = Π π_old/π_rollout` over the
trajectory, `μ = 1/tokens` of all tokens. TRL's `sequence_mask`, the default of its vLLM correction, at 3. All laws hold
but `causal`: whole trajectories are weighed or dropped.
"""


log_rho = log_prob(old) - log_prob(rollout)
seq_mask_tis_mean_ratio = exp(mean(log_rho, over=trajectory))
seq_mask_tis = Hierarchy(
    name="seq_mask_tis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean()
    .weigh(exp(log_rho))
    .keep((seq_mask_tis_mean_ratio >= least) & (seq_mask_tis_mean_ratio <= most)),
    gives_up={"causal": "a trajectory is dropped whole"},
)
"""Masked by trajectory, weighed by token (Liu et al. 2025): `geometric_mask` with the ratios of tokens to the engine.

`J = Σ μ·ρ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories with `least <= exp(mean log ρ) <= most`, `ρ =
π_old/π_rollout` of the token, `μ = 1/tokens` of all tokens. NeMo-RL's and OpenRLHF's `seq-mask-tis`, whose name says
that ratios are truncated. They are not. All laws hold but `causal`: whole trajectories are dropped.
"""


sequence_tis_log_rho = total(log_prob(old) - log_prob(rollout), over=trajectory)
sequence_tis = Hierarchy(
    name="sequence_tis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(minimum(exp(sequence_tis_log_rho), ceiling)),
    gives_up={"causal": "a trajectory is weighed whole"},
)
"""TIS by sequences (Yao et al. 2025; Liu et al. 2025): PPO, weighed by the whole trajectory's ratio to the engine.

`J = Σ μ·min(ρ, ceiling)·min(r·A, clip(r, 1-low, 1+high)·A)`, `ρ = Π π_old/π_rollout` over the trajectory, `μ =
1/tokens`. verl's `rollout_is=sequence`, TRL's `sequence_truncate`, SkyRL's `tis_ratio_type=sequence`; verl and SkyRL
cut `log ρ` at ±20 first. All laws hold but `causal`: whole trajectories are weighed.
"""


tis = Hierarchy(
    name="tis",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(minimum(exp(log_prob(old) - log_prob(rollout)), ceiling)),
)
"""TIS (Yao et al. 2025): PPO, with every token weighed by its ratio to the engine that sampled it.

`J = Σ μ·min(ρ, ceiling)·min(r·A, clip(r, 1-low, 1+high)·A)`, `ρ = π_old/π_rollout` of the token, `μ = 1/tokens`. verl's
`rollout_is=token`, TRL's `token_truncate`, SkyRL's `tis_ratio_type=token`, slime's `--use-tis`, `tis` of NeMo-RL and
OpenRLHF, which have a lower bound too; ROLL's `tis` is `cispo_absolute` at 1. All laws hold.
"""


token_veto_least = Parameter("least", default=0.0001, upper=1)
token_veto_most = Parameter("most", default=100.0, lower=1)
token_veto = Hierarchy(
    name="token_veto",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(
        ~some((rho < token_veto_least) | (rho > token_veto_most), over=trajectory), normaliser="kept"
    ),
    gives_up={"causal": "a trajectory is dropped whole"},
)
"""The veto of a token (Liu et al. 2025): PPO, without trajectories that have a token with a wild ratio to the engine.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over trajectories in which `least <= ρ <= most` for every token, `ρ =
π_old/π_rollout`, `μ = 1/tokens` of those kept. SkyRL's `outlier_token_is_threshold_low` and `_high`; verl's
`seq_max_k2` and `seq_max_k3` bound functions of `ρ`. All laws hold but `causal`: whole trajectories are dropped.
"""
