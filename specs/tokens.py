"""One ratio per token: PPO and its variants."""

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Objective,
    Parameter,
    advantage,
    clip,
    constant_normaliser,
    count,
    decomposition,
    density,
    dual_clip_gate,
    exp,
    expm1,
    gated,
    log,
    log1p,
    log_prob,
    log_ratio,
    maximum,
    minimum,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    residual,
    sigmoid,
    sqrt,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)

token, state, trajectory = strata("token state trajectory")
(old,) = policies("old")
low = Parameter("epsilon_low", default=0.2, upper=1)  # below 1, so that the clipped ratio stays positive
high = Parameter("epsilon_high", default=0.2)
dapo_high = Parameter("epsilon_high", default=0.28)
ceiling = Parameter("ceiling", default=3.0, lower=1)


delta = Parameter("delta", default=0.1)
T = count(token, over=state)
deviation = residual + density(state) / T  # of the token itself, on its own sign channel
spent = density(state, "+") + density(state, "-")  # by all tokens of the state
left = maximum(T * delta - (spent - deviation), 0)
r_minus_1 = expm1(token_log_ratio)
apc_obj = Hierarchy(
    name="apc_obj",
    fibrations=[Fibration(token, state, kernel=uniform())],
    gates={state: zero_gate(), token: Gate(minimum(deviation, left))},
    decomposition=decomposition(
        plus=where(token_log_ratio >= 0, r_minus_1, 0),
        minus=where(token_log_ratio >= 0, 0, -r_minus_1),
        recovery=1 + gated("+") - gated("-"),
    ),
    objective=token_mean(),
    gives_up={"identity": "the state adds nothing, and its tokens pass their whole deviation instead"},
)
"""APC-Obj (def:apc_obj, eq:apc_obj_gating): a total-variation budget per state, spent by all its tokens together.

A token's deviation is clipped to the part of the budget `T_s·δ` that the other tokens at its state leave: `clip(Δ,
±(T_s·δ - Σ_{others} |r - 1|)^+)`. The token's gate reads the density of its state, in both sign channels; the state's
own gate adds nothing. All laws hold but `identity`: a single gate is not the identity. All gates together are, as long
as no state exceeds its budget.

`op.index(mask=..., state=ids)` takes one id per token, equal where the prefix is equal.
"""


r = exp(token_log_ratio)
aspo = Hierarchy(
    name="aspo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean()
    .score()
    .weigh(minimum(where(advantage >= 0, 1 / r, r), ceiling))
    .keep(((advantage >= 0) & (r <= 1 + high)) | ((advantage < 0) & (r >= 1 - low))),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""ASPO (Wang et al. 2025, 2510.06062): where the advantage is positive the ratio is turned over.

`J = Σ μ·stop(w)·A·log π` over tokens that PPO's clip passes, `w = min(1/r, ceiling)` where `A >= 0` and `min(r,
ceiling)` elsewhere: a soft dual clip, which caps a weight and keeps the gradient. The authors' code (Archer 2.0) has
wider bounds on tokens of high entropy. Some of its tokens have the value of a ratio, others of a score; the gradients
are the same. All laws hold but `identity` and `first_order`: the weights are held, so the value is not the objective.
"""


bapo_low = Parameter("c_low", default=0.6, upper=1)
bapo_high = Parameter("c_high", default=1.2, lower=1)
bapo = Hierarchy(
    name="bapo",
    gates={token: Gate(where(advantage >= 0, minimum(residual, bapo_high - 1), maximum(residual, bapo_low - 1)))},
    decomposition=ratio_deviation(),
    objective=token_mean(),
)
"""BAPO (Xi et al. 2025, 2510.18927): PPO's gate, whose bounds a trainer moves to balance good and bad answers.

`J = Σ μ·min(r·A, clip(r, c_low, c_high)·A)`, `μ = 1/tokens`. Before each step the paper widens `c_high` from 1.2 to 3
and `c_low` from 0.6 to 0.9 until tokens of positive advantage make up `rho_0` of the loss: that loop is outside of the
loss, and passes its result as parameters. All laws hold.
"""


below = Parameter("beta_low", default=0.75)  # beta_1 of the paper, where the advantage is negative
above = Parameter("beta_high", default=1.0)  # beta_2, where it is positive
moved = residual - stop(residual)  # 0, with the slope of the log ratio
ce_gppo = Hierarchy(
    name="ce_gppo",
    gates={
        token: Gate(
            where(
                (advantage < 0) & (residual < log1p(-low)),
                log(below * (1 - low)) + moved,
                where(
                    (advantage > 0) & (residual > log1p(dapo_high)),
                    log(above * (1 + dapo_high)) + moved,
                    residual,
                ),
            )
        )
    },
    decomposition=log_ratio(),
    objective=token_mean(),
)
"""CE-GPPO (Su et al. 2025, 2509.20712; GPPO 2508.07629 at `beta = 1`): past its clip a token keeps a bounded gradient.

`𝒢(r) = beta·bound·r/stop(r)` beyond PPO's clip, at its `bound` `1 - low` or `1 + high`, and `𝒢(r) = r` elsewhere:
beyond the bound the value and the gradient are `beta·bound`. The authors' code, and trainers that copied it, add PPO's
dual clip at 3. All laws hold.
"""


cispo_low = Parameter("epsilon_low", default=1.0)
cispo = Hierarchy(
    name="cispo",
    gates={token: Gate(clip(residual, -cispo_low, dapo_high))},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""CISPO (MiniMax 2025, 2506.13585): the importance ratio is clipped and held fixed, and every token keeps its score.

`J = Σ μ·stop(clip(r, 1-low, 1+high))·A·log π`, a score estimator: `∇J = Σ μ·clip(r)·A·∇log π`. A `low` of 1 or more
never binds, as in the paper. verl's, SkyRL's and slime's `cispo`, NeMo-RL's `use_cispo`; for TRL and others see
`cispo_absolute`. All laws hold but `first_order`: at `r = 1` its gradient is the policy gradient; its value is not the
objective.
"""


cispo_absolute_ceiling = Parameter("ceiling", default=5.0, lower=1)
cispo_absolute = Hierarchy(
    name="cispo_absolute",
    gates={token: Gate(minimum(residual, cispo_absolute_ceiling - 1))},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""CISPO with its bound as a ratio (MiniMax 2025, 2506.13585; ScaleRL 2025, 2510.13786): the ratio is capped and held.

`J = Σ μ·stop(min(r, ceiling))·A·log π`. TRL, Liger and ms-swift give the ceiling itself as `epsilon_high`; verl, slime,
NeMo-RL and `cispo` here give `high` with `ceiling = 1 + high`. A number copied from one group to the other is off by 1.
ROLL's `tis` has 1 for it. All laws hold but `first_order`: at `r = 1` its gradient is the policy gradient; its value is
not the objective.
"""


dapo = Hierarchy(
    name="dapo",
    gates={token: pessimistic_clip_gate(low, dapo_high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
)
"""DAPO (Yu et al. 2025, 2503.14476): PPO's gate with a wider upper bound, averaged over all tokens of the batch.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/tokens`. TRL's default, `dapo`; its `bnpo` counts the tokens of a
micro-batch; verl's `vanilla` with `token-mean`, SkyRL's `regular`. All laws hold.
"""


dcpo_low = Parameter("epsilon_low", default=0.16, upper=1)
dcpo_ceiling = Parameter("ceiling", default=10.0, lower=1)
rarity = exp(-log_prob(old))  # 1/q
upper = minimum((1 + sqrt(1 + 4 * high * rarity)) / 2, dcpo_ceiling)
lower = (1 + sqrt(maximum(1 - 4 * dcpo_low * rarity, 0))) / 2
dcpo = Hierarchy(
    name="dcpo",
    gates={
        token: Gate(
            where(advantage >= 0, minimum(residual, upper - 1), minimum(maximum(residual, lower - 1), dcpo_ceiling - 1))
        )
    },
    decomposition=ratio_deviation(),
    objective=Objective(1 / count(token, over=trajectory)),
)
"""DCPO (Yang et al. 2025, 2509.02333): PPO's clip with bounds that are wider for tokens that were improbable.

`J = Σ μ·min(r·A, clip(r, low, high)·A)`, `low = (1 + sqrt(max(1 - 4·epsilon_low/q, 0)))/2`, `high = (1 + sqrt(1 +
4·epsilon_high/q))/2` with `q = π_old` of the token, and no ratio above `ceiling`; `μ = 1/T` of the trajectory (its OTM,
a mean over the tokens of each response and a sum over responses). Its smoothed advantages are data here. All laws hold.
"""


length = Parameter("length", default=1024)  # usually the longest response allowed, in tokens
dr_grpo = Hierarchy(
    name="dr_grpo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(length),
)
"""Dr. GRPO (Liu et al. 2025, 2503.20783): PPO's gate, a sum over tokens by a constant length: long answers weigh more.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/(trajectories·length)`. TRL's `dr_grpo`; verl's
`seq-mean-token-sum-norm`, which divides by the padded width of each micro-batch unless it is given a
`loss_scale_factor`. All laws hold.
"""


grpo = Hierarchy(
    name="grpo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
)
"""GRPO (Shao et al. 2024, 2402.03300; app:xxpo_rgf): PPO's gate, averaged over the tokens of each trajectory first.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/(trajectories·T)` for `T` tokens of a trajectory. TRL's `grpo`,
verl's `vanilla` with `seq-mean-token-mean`. All laws hold.
"""


ppo = Hierarchy(
    name="ppo",
    gates={token: dual_clip_gate(low, high, ceiling)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
)
"""PPO with dual clip (app:xxpo_rgf; dual clip: Ye et al. 2020): tokens are gated alone, against their advantage.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `μ = 1/tokens`; for negative advantages the ratio counts as at most
`ceiling`. verl's `vanilla`, SkyRL's `dual_clip`, OpenRLHF's `dual_clip`, TRL's `delta`, slime's `eps_clip_c`; TRL has
no ceiling by default. All laws hold.
"""


reinforce = Hierarchy(
    name="reinforce",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    gives_up={"first_order": "a score estimator without a ratio"},
)
"""REINFORCE (Williams 1992): every token keeps its score, whatever its ratio.

`J = Σ μ·A·log π`, a score estimator: `∇J = Σ μ·A·∇log π`. verl has it as `gpg`, and as `reinforce` in its bypass mode.
All laws hold but `identity` and `first_order`: it has no ratio, so off policy it is not the gradient of an objective.
"""


tau = where(advantage > 0, Parameter("tau_pos", default=1.0), Parameter("tau_neg", default=1.05))
sapo = Hierarchy(
    name="sapo",
    gates={token: Gate(4 / tau * sigmoid(tau * residual) - 1)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    gives_up={"first_order": "the value at r = 1 is 2/tau"},
)
"""SAPO (Gao et al. 2025, 2511.20347): a soft gate, `𝒢(r) = 4/τ·σ(τ·(r-1))`, with a temperature for each sign of `A`.

TRL's, verl's and SkyRL's `sapo`; TRL has the temperatures in float32. All laws hold but `identity` and `first_order`,
which fail in the value alone: at `r = 1` the slope is 1, so the gradient is the policy gradient, and the value is `2/τ`
instead of 1.
"""


epsilon = Parameter("epsilon", default=0.2, upper=1)
alpha = Parameter("alpha", default=0.3)
truly_ppo_above = where(residual <= epsilon, residual, epsilon - alpha * (residual - epsilon))
truly_ppo_below = where(residual >= -epsilon, residual, -epsilon - alpha * (residual + epsilon))
truly_ppo = Hierarchy(
    name="truly_ppo",
    gates={token: Gate(where(advantage >= 0, truly_ppo_above, truly_ppo_below))},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    gives_up={"positivity": "a ratio far past its bound rolls back below 0"},
)
"""Truly PPO's rollback (Wang et al. 2019, PPO-RB): past its bound the ratio counts less the further it is.

`min(r·A, F(r)·A)`, where `F` follows the ratio inside `[1-ε, 1+ε]` and runs back with slope `-α` outside: PPO-RB, the
simpler variant. The paper's own Truly PPO rolls back if the KL divergence is too large. All laws hold but `positivity`:
far beyond the bound the gated ratio is negative, which pushes the token back.
"""
