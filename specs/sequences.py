"""One ratio per sequence, or one that its tokens share: GSPO and its kin."""

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    advantage,
    clip,
    constant_normaliser,
    count,
    decomposition,
    density,
    exp,
    expm1,
    gated,
    identity_gate,
    log1p,
    log_clip_gate,
    log_ratio,
    maximum,
    minimum,
    ratio_deviation,
    residual,
    sqrt,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.0003, upper=1)
high = Parameter("epsilon_high", default=0.0004)


dhpo_low = Parameter("epsilon_low", default=0.2, upper=1)
dhpo_high = Parameter("epsilon_high", default=0.28)
low_s = Parameter("epsilon_low_sequence", default=0.0003, upper=1)
high_s = Parameter("epsilon_high_sequence", default=0.0004)
share = Parameter("share", default=0.5, upper=1)
T = count(token, over=trajectory)
x = token_log_ratio
own = where(advantage >= 0, minimum(x, log1p(dhpo_high)), maximum(x, log1p(-dhpo_low)))
dhpo = Hierarchy(
    name="dhpo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: {"+": identity_gate(), "-": log_clip_gate(low_s, high_s)},
        token: {"+": identity_gate(), "-": zero_gate()},
    },
    decomposition=decomposition(
        plus=own / T,
        minus=x / T,
        recovery=share * exp(T * gated("+")) + (1 - share) * exp(T * gated("-")),
        scale=1 / T,
    ),
    objective=trajectory_mean(),
    gives_up={
        "recovery": "tokens are clipped where they are read",
        "first_order": "what single tokens do beyond their mean is dropped in part",
    },
)
"""DHPO (Min et al. 2026, 2601.05607): GRPO's ratio and GSPO's, each in a trust region of its own, mixed afterwards.

`𝒢(r) = share·clip(r, 1-low, 1+high) + (1-share)·clip(s, 1-low_s, 1+high_s)`, each at the bound that the advantage
pushes against, `s = exp(mean log r)` of the trajectory: the averaged mixing, `share = 1/2`. The paper's second variant
takes a share per token from its entropy. No trainer and no author ships code, so the sides of its clips are read from
the paper. All laws hold but `recovery`, `identity` and `first_order`: tokens are clipped before they are mixed, and a
share `1 - share` of each token's deviation from its trajectory's mean is dropped.
"""


band = Parameter("band", default=0.05)
bound = band * sqrt(T)
S = T * residual
clipped = where(advantage >= 0, minimum(S, bound), maximum(S, -bound))
fspo = Hierarchy(
    name="fspo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: Gate(log1p(expm1(clipped) / T)), token: zero_gate()},
    decomposition=log_ratio(scale=1 / T),
    objective=constant_normaliser(1),
    gives_up={"first_order": "one ratio per trajectory: what single tokens do beyond their sum is dropped"},
)
"""FSPO (Mao et al. 2025, 2509.09177): the product of a trajectory's ratios, in a band as wide as its length's root.

`J = Σ μ·min(s·A, exp(clip(S, ±band·sqrt(T)))·A)` over trajectories, `S = Σ log r`, `s = exp(S)`, `μ = 1/trajectories`.
Its first version moves the band by a drift. Spread over tokens, each with `1 + (s-1)/T`, its value is `Σ
(T-1)·A/trajectories` more, which no gradient sees. The formula is from excerpts of the paper. All laws hold but
`identity` and `first_order`: each token has the product of all ratios.
"""


gmpo_low = Parameter("epsilon_low", default=0.4)
gmpo_high = Parameter("epsilon_high", default=0.4)
gmpo_x = where(advantage >= 0, minimum(token_log_ratio, gmpo_high), maximum(token_log_ratio, -gmpo_low))
gmpo = Hierarchy(
    name="gmpo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: identity_gate(), token: zero_gate()},
    decomposition=decomposition(density=gmpo_x / T, recovery=exp(T * gated("")), scale=1 / T),
    objective=trajectory_mean(),
    gives_up={
        "recovery": "tokens are clipped before their mean is taken",
        "first_order": "one ratio per trajectory: what single tokens do beyond their mean is dropped",
    },
)
"""GMPO (Zhao et al. 2025, 2507.20673): the geometric mean of ratios that are clipped where the advantage pushes.

`J = Σ μ·A·exp(mean min(±x, ±clip(x, -low, high)))`, with the sign of `A`: bounds are on `x = log r`, and the advantage
is one per trajectory. verl ships it as `geo_mean`, averaged over trajectories. All laws hold but `recovery`, `identity`
and `first_order`: a clipped token is not recovered, and all tokens of a trajectory share one ratio.
"""


gspo = Hierarchy(
    name="gspo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: log_clip_gate(low, high), token: zero_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up={"first_order": "one ratio per trajectory: what single tokens do beyond their mean is dropped"},
)
"""GSPO (Zheng et al. 2025, 2507.18071; app:apc_obj_to_gspo): the geometric mean of a trajectory's ratios.

`J = Σ μ·min(s·A, clip(s, 1-low, 1+high)·A)` with `s = exp(mean log r)` of the trajectory. TRL's
`importance_sampling_level="sequence"`, OpenRLHF's and AReaL's too; verl and SkyRL ship `gspo_token` by this name. All
laws hold but `identity` and `first_order`: a token's deviation from its trajectory's mean is removed, so token by token
the gradient is not the policy gradient. For advantages that are constant on trajectories, such as GRPO's, it is.
"""


gspo_residual = Hierarchy(
    name="gspo_residual",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: Gate(clip(residual, log1p(-low), log1p(high))), token: identity_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
"""GSPO by residuals (after Zheng et al. 2025): the trajectory's ratio is clipped, tokens keep their deviation from it.

`𝒢(r) = clip(s, 1-low, 1+high)·r/s` with `s = exp(mean log r)` of the trajectory. The advantage may vary by token, so
the clip does not read its sign. All laws hold; `log 𝒢` has no bound, since nothing limits a token's deviation.

The published loss is `min(s'·A, clip(s', 1-low, 1+high)·A)` with `s' = stop(s)·π/stop(π)`: a token's own part has a
gradient and no value. The two agree to first order at `r = 1`, and only there. Within the clip `𝒢(r) = r` is plain
importance sampling, where the published loss weighs all tokens of a trajectory by `s`. Beyond it a token keeps the
gradient of what it adds, where the published loss has none, or all of it on the side that `min` lets through.
"""


mean_x = density(trajectory)
gspo_token_x = T * residual + mean_x  # the token's own log ratio
gspo_token_clipped = where(advantage >= 0, minimum(mean_x, log1p(high)), maximum(mean_x, log1p(-low)))
passes = ((advantage >= 0) & (mean_x <= log1p(high))) | ((advantage < 0) & (mean_x >= log1p(-low)))
gspo_token = Hierarchy(
    name="gspo_token",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: zero_gate(),
        token: Gate((stop(gspo_token_clipped) + where(passes, gspo_token_x - stop(gspo_token_x), 0)) / T),
    },
    decomposition=log_ratio(scale=1 / T),
    objective=trajectory_mean(),
    gives_up={"first_order": "in value a token has the ratio of its trajectory"},
)
"""GSPO-token (Zheng et al. 2025, 2507.18071): the trajectory's ratio in value, each token's own in gradient.

`J = Σ μ·min(s'·A, clip(s', 1-low, 1+high)·A)` with `s' = stop(s)·π/stop(π)`, `s = exp(mean log r)` of the trajectory,
and an advantage that may vary by token. verl ships it as `gspo`, with its own reduction; so do SkyRL and Tinker, with
the ratio cut at `exp(10)`. TRL's `importance_sampling_level="sequence"` is `gspo`. Where advantages are constant on
trajectories the two have the same gradient. All laws hold but `identity` and `first_order`: the value of a token is its
trajectory's ratio.
"""


luspo_low = Parameter("epsilon_low", default=0.002, upper=1)
luspo_high = Parameter("epsilon_high", default=0.0025)
luspo = Hierarchy(
    name="luspo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: log_clip_gate(luspo_low, luspo_high), token: zero_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=constant_normaliser(1),
    gives_up={"first_order": "one ratio per trajectory: what single tokens do beyond their mean is dropped"},
)
"""LUSPO (2026, 2602.05261): GSPO with every trajectory weighed by its length, so that long answers are not worth less.

`J = Σ μ·min(s·A, clip(s, 1-low, 1+high)·A)`, `μ = 1/trajectories` for every token, `s = exp(mean log r)` of the
trajectory. TRL ships it as `luspo`, with `importance_sampling_level="sequence"`; without that it is another loss. All
laws hold but `identity` and `first_order`, as in GSPO.
"""


topr = Hierarchy(
    name="topr",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1)
    .score()
    .weigh(where(advantage >= 0, 1, exp(minimum(total(token_log_ratio, over=trajectory), 0)))),
    gives_up={
        "first_order": "a score estimator: its value is not the objective",
        "causal": "a trajectory is weighed whole",
    },
)
"""TOPR (Le Roux et al. 2025, 2503.14286): good answers keep their score, bad ones get a ratio of at most 1.

`J = Σ μ·stop(w)·A·log π`, `w = 1` where `A >= 0` and `min(Π r, 1)` over the trajectory elsewhere, `μ = 1/trajectories`.
ROLL ships it as `topr`, with the token's own ratio for the trajectory's and the sign of the reward for that of the
advantage. All laws hold but `identity` and `first_order`, since the value of a score estimator is not the objective,
and `causal`: whole trajectories are weighed.
"""


k = where(advantage >= 0, Parameter("k_pos", default=2.0), Parameter("k_neg", default=3.0))
rate = where(advantage >= 0, Parameter("lambda_pos", default=3.0), Parameter("lambda_neg", default=2.0))
log_w = total(token_log_ratio, over=trajectory)
vespo = Hierarchy(
    name="vespo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score().weigh(exp(k * log_w - rate * expm1(log_w))),
    gives_up={
        "first_order": "a score estimator: its value is not the objective",
        "causal": "a trajectory is weighed whole",
    },
)
"""VESPO (2026, 2602.10693): every token's score times a gamma weight of its trajectory's whole ratio.

`J = Σ μ·stop(φ(W))·A·log π` with `W = Π r` of the trajectory and `φ(W) = W^k·exp(λ·(1 - W))`, `k` and `λ` by the sign
of the advantage. TRL ships it as `vespo`: a mean over tokens, `log W` cut at ±20, and an engine's ratio multiplied into
`W`. All laws hold but `identity` and `first_order`, since the value of a score estimator is not the objective, and
`causal`: whole trajectories are weighed.
"""
