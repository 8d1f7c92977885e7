"""Sums: KL divergences, entropy, likelihood and squares, which no advantage multiplies."""

from fibration import (
    Hierarchy,
    Parameter,
    Penalty,
    absolute,
    advantage,
    centred,
    constant_normaliser,
    exp,
    identity_gate,
    log1p,
    log_prob,
    mean,
    pessimistic_clip_gate,
    policies,
    quantile,
    ratio_deviation,
    reward,
    standardised,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
    zero_gate,
)

token, prompt_group, trajectory, batch = strata("token prompt_group trajectory batch")
current, reference, old = policies("current reference old")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
beta = Parameter("beta", default=0.04)
tau = Parameter("tau", default=0.1)
ppo_entropy_high = Parameter("epsilon_high", default=0.28)


dro_beta = Parameter("beta", default=0.1)
dro = Hierarchy(
    name="dro",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().score(),
    penalties={"square": dro_beta / 2 * token_log_ratio**2},
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""DRO (Richemond et al. 2024, 2405.19107, as in verl): REINFORCE, and the square of every token's log ratio.

`J = Σ μ·(A·log π - beta/2·(log r)²)`, `μ = 1/tokens`. verl's `dro` with `dro_beta`; the paper takes whole answers, and
learns a value too. All laws hold but `identity` and `first_order`: a score estimator.
"""


grpo_k2 = Hierarchy(
    name="grpo_k2",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    penalties={"kl": beta * (log_prob(current) - log_prob(reference)) ** 2 / 2},
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
"""GRPO with k2 (Schulman 2020; 2501.03262, appendix A): the square whose gradient is that of the divergence.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - beta·x²/2)`, `x = log(π/π_reference)`, `A` as in `grpo_rewards`, `μ =
1/(trajectories·T)`. verl's `kl_loss_type=mse`; its `k1+` and `k3+` have this gradient and another value. All laws hold
but `baseline`: the penalty's gradient is right in expectation on policy. Off policy it lacks the weight that `grpo_rk3`
has.
"""


x = log_prob(current) - log_prob(reference)
grpo_k3 = Hierarchy(
    name="grpo_k3",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group, epsilon=1e-4),
    penalties={"kl": beta * (exp(-x) + x - 1)},
    gives_up={
        "baseline": "groups whose rewards differ less count for more",
        "kl_gradient": "k3 has the value of the divergence, and the gradient of the forward one",
    },
)
"""GRPO as published (Shao et al. 2024, 2402.03300): rewards standardised in the group, and k3 to a reference as a loss.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - beta·k3)`, `k3 = exp(-x) + x - 1`, `x = log(π/π_reference)`, `A` as in
`grpo_rewards`, `μ = 1/(trajectories·T)`. TRL with `beta` and `use_bias_correction_kl=False`, verl with
`kl_loss_type=low_var_kl`, and ms-swift; with weights for the engine, TRL adds the term after the weight, ms-swift
before it. All laws hold but `baseline`, and `kl_gradient`: the expectation of its gradient `1 - exp(-x)` is that of
KL(reference ‖ current), not of KL(current ‖ reference).
"""


grpo_rk3 = Hierarchy(
    name="grpo_rk3",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    penalties={"kl": beta * exp(token_log_ratio) * (exp(-x) + x - 1)},
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
"""GRPO with an unbiased KL (DeepSeek-V3.2 2025, 2512.02556): k3 times the ratio, through which gradients flow.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - beta·r·k3)`, `k3 = exp(-x) + x - 1`, `x = log(π/π_reference)`, `A` as in
`grpo_rewards`, `μ = 1/(trajectories·T)`. TRL with `beta`, where `use_bias_correction_kl` is on by default. All laws
hold but `baseline`: the gradient of `r·k3` is `r·x`, that of the divergence, off policy too. `opsm` is the mask of the
same report.
"""


kimi_k15 = Hierarchy(
    name="kimi_k15",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group),
    penalties={"square": Penalty(tau / 2 * total(token_log_ratio, over=trajectory) ** 2, over=trajectory)},
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""Kimi K1.5 (Kimi Team 2025, 2501.12599): REINFORCE from centred rewards, and the square of a trajectory's log ratio.

`J = Σ μ·A·log π - mean τ/2·(Σ log r)²`, `A = R - mean` of the prompt group, `Σ log r` and the mean over trajectories,
`μ = 1/trajectories`: the gradient that the paper takes of a policy mirror descent's squared loss, as web pages quote
it. All laws hold but `identity` and `first_order`: a score estimator.
"""


kimi_k2 = Hierarchy(
    name="kimi_k2",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1 / (2 * tau)).score(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group),
    penalties={"square": Penalty((tau * total(token_log_ratio, over=trajectory)) ** 2, over=trajectory)},
    gives_up={"first_order": "a score estimator: its value is not the objective"},
)
"""Kimi K2 (Kimi Team 2025, 2507.20534): a regression of centred rewards on `τ` times a trajectory's log ratio.

`J = Σ μ·A·log π - mean τ²·(Σ log r)²`, `A = R - mean` of the prompt group, `μ = 2·τ/trajectories`: up to terms that the
policy does not change, the paper's `-mean (A - τ·Σ log r)²`, as web pages quote it. `2·τ` times `kimi_k15`. All laws
hold but `identity` and `first_order`: a score estimator.
"""


coef = Parameter("coef", default=1.0)
level = Parameter("level", default=0.9998, upper=1)
cov = (advantage - mean(advantage, over=batch)) * (log_prob(current) - mean(log_prob(current), over=batch))
kl_cov = Hierarchy(
    name="kl_cov",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    penalties={"kl": where(cov > quantile(cov, level, over=batch), coef * absolute(token_log_ratio), 0)},
)
"""KL-Cov (Cui et al. 2025, 2505.22617): importance sampling, and a penalty on tokens of the largest covariances.

`J = Σ μ·(r·A - coef·|log r|·[cov > c])`, `cov = (A - mean A)·(log π - mean log π)` of the batch, `c` its quantile at
`level`, `μ = 1/tokens`. verl's `kl_cov` takes the `kl_cov_ratio` largest of all tokens, one at least. All laws hold.
"""


bonus = Parameter("bonus", default=0.001)
ppo_entropy = Hierarchy(
    name="ppo_entropy",
    gates={token: pessimistic_clip_gate(low, ppo_entropy_high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    penalties={"entropy": bonus * exp(token_log_ratio) * (log_prob(current) - 1)},
)
"""PPO with an entropy bonus (after Schulman et al. 2017) from sampled tokens: `log π` alone has no gradient on average.

`J = Σ μ·(min(r·A, clip(r, 1-low, 1+high)·A) - bonus·r·(log π - 1))`, `μ = 1/tokens`. The derivative of `r·(log π - 1)`
is `r·log π`, in expectation minus that of the entropy, off policy too; its expectation is minus the entropy, less 1.
Trainers have the exact entropy of the whole vocabulary, which only the model can give. All laws hold.
"""


share = Parameter("share", default=0.1)
ppo_nll = Hierarchy(
    name="ppo_nll",
    gates={token: pessimistic_clip_gate(low, ppo_entropy_high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    penalties={
        "nll": Penalty(-share * log_prob(current), objective=token_mean().keep(advantage > 0, normaliser="kept"))
    },
)
"""PPO with the likelihood of good answers (VAPO: Yue et al. 2025, 2504.05118): right answers are also imitated.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A) + share·Σ ν·log π`, `ν = 1/tokens` of those with `A > 0` and 0 elsewhere, `μ
= 1/tokens`. In VAPO these are the tokens of right answers, which are the same where advantages are centred rewards;
with a critic give an attribute of the rows instead. Its advantages are `ppo_gae`'s. The formula is from web pages that
quote the paper. All laws hold.
"""


prime_rl_low = Parameter("low", default=0.2)
prime_rl_high = Parameter("high", default=0.2)
prime_rl_tau = Parameter("tau", default=0.001)
moved = exp(log_prob(current)) - exp(log_prob(old))
outside = ((advantage > 0) & (moved > prime_rl_high)) | ((advantage < 0) & (moved < -prime_rl_low))
prime_rl = Hierarchy(
    name="prime_rl",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(~outside),
    penalties={"square": prime_rl_tau * token_log_ratio**2},
)
"""prime-rl's default (2026): importance sampling within DPPO's mask, and Kimi's square of every token's log ratio.

`J = Σ μ·(r·A - tau·(log r)²)`, without the first term where `π - π_old` is above `high` and `A > 0`, or below `-low`
and `A < 0`; `μ = 1/tokens`. Read in the sources of prime-rl, where `old` is the engine, `high` and `low` are
`dppo_mask_high` and `dppo_mask_low`, and `tau` is `kl_tau`. `dppo_tv` has the mask in a score estimator. All laws hold.
"""


real_tau = Parameter("tau", default=0.5)
s = mean(token_log_ratio, over=trajectory) / real_tau
right = total(where(advantage > 0, exp(-s), 0), over=prompt_group, of=trajectory)
wrong = total(where(advantage > 0, 0, exp(s)), over=prompt_group, of=trajectory)
real = Hierarchy(
    name="real",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean().weigh(0),
    groups=[prompt_group],
    advantages=reward - 0.5,
    penalties={"classified": Penalty(log1p(right) + log1p(wrong), over=prompt_group)},
    gives_up={
        "agreement": "the objective is its penalty",
        "gradient": "the objective is its penalty",
        "first_order": "the objective is its penalty",
    },
)
"""REAL (Zhai et al. 2026, 2602.05630): rewards are labels, and the answers to a prompt are classified by them.

`J = -mean(log(1 + Σ_right exp(-s/τ)) + log(1 + Σ_wrong exp(s/τ)))` over prompt groups, `s = mean log r` of a
trajectory. Rewards above 1/2 are right. ms-swift's `real`, from whose page the formula is; the mean over groups is
ours. All laws hold but `agreement`, `gradient`, `identity` and `first_order`: the whole loss is a penalty, without an
advantage.
"""
