"""Whole objectives: the hierarchy declares how rewards become advantages."""

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    after,
    centred,
    constant_normaliser,
    count,
    deviation,
    identity_gate,
    largest,
    log_prob,
    maximum,
    mean,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    reward,
    sqrt,
    standardised,
    strata,
    token_mean,
    total,
    trajectory_mean,
    where,
    zero_gate,
)

token, trajectory, prompt_group, batch, domain = strata("token trajectory prompt_group batch domain")
old, teacher, reference = policies("old teacher reference")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
dapo_high = Parameter("epsilon_high", default=0.28)
length = Parameter("length", default=1024)  # usually the longest response allowed, in tokens
beta = Parameter("beta", default=1.0)


best = largest(reward, over=prompt_group, of=trajectory)
least = -largest(-reward, over=prompt_group, of=trajectory)
second = largest(where(reward >= best, least, reward), over=prompt_group, of=trajectory)
at_best = total(where(reward >= best, 1, 0), over=prompt_group, of=trajectory)
spread = deviation(reward, over=prompt_group, of=trajectory) + 1e-6
best_of_group = Hierarchy(
    name="best_of_group",
    gates={token: pessimistic_clip_gate(low, dapo_high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=where((reward >= best) & (at_best <= 1), (reward - second) / spread, 0),
    gives_up={"baseline": "an answer's own reward decides whether it is compared"},
)
"""The best of a group (Walder & Karkhanis 2025, 2503.19595, as in verl): the lead of the best answer over the second.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - second)/(std + epsilon)` for the single best answer to a prompt,
0 for the others, and for all if two are best; `μ = 1/tokens`. It is verl's estimator `grpo_passk`, which refuses a
group of one. All laws hold but `baseline`: an answer's own reward decides whether it is compared at all.
"""


dapo_rewards = Hierarchy(
    name="dapo_rewards",
    gates={token: pessimistic_clip_gate(low, dapo_high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
"""DAPO from rewards (Yu et al. 2025, 2503.14476): GRPO's advantages, a wider bound above, all tokens alike.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - mean)/(std + epsilon)` of the prompt group, `μ = 1/tokens`.
Groups whose rewards are all equal get advantages of exactly 0. DAPO replaces groups of equal rewards, and lowers the
rewards of answers that are too long. Both steps happen before the loss. All laws hold but `baseline`, as with
`grpo_rewards`.
"""


dr_grpo_rewards = Hierarchy(
    name="dr_grpo_rewards",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(length),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group),
)
"""Dr. GRPO from rewards (Liu et al. 2025, 2503.20783): the group's mean is subtracted, without a division.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = R - mean` of the prompt group, `μ = 1/(trajectories·length)`. verl's
`norm_adv_by_std_in_grpo=False`, TRL's `scale_rewards="none"`. All laws hold: an answer is part of the mean that it is
compared with, so its gradient is `(G-1)/G` of the true one. `rloo` has the whole one.
"""


first_reward, second_reward = (Attribute(f"reward_{n}", on=trajectory, positive=False) for n in (1, 2))
weights = [Parameter(f"weight_{n}", default=1.0) for n in (1, 2)]


def alone(given, over):
    """Standardised, over the answers of a stratum."""
    return (given - mean(given, over=over, of=trajectory)) / (deviation(given, over=over, of=trajectory) + 1e-4)


gdpo = Hierarchy(
    name="gdpo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=alone(
        weights[0] * alone(first_reward, prompt_group) + alone(second_reward, prompt_group) * weights[1], batch
    ),
    gives_up={
        "baseline": "each reward is divided by its deviation, and their sum by that of the batch",
        "baseline of what is left of advantages": "the rewards are attributes, and reward is not read",
    },
)
"""GDPO (Liu et al. 2026, 2601.05242): two rewards, each standardised in the prompt group, then their sum in the batch.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (S - mean S)/(std S + epsilon)` over the answers of the batch,
`S = w_1·Z(R_1) + w_2·Z(R_2)`, `Z(R) = (R - mean)/(std + epsilon)` of the prompt group, over answers, with `n - 1`;
`μ = 1/tokens`. TRL's `multi_objective_aggregation="normalize_then_sum"` is this `A`, with `epsilon = 1e-4`. The
estimator `gdpo` of verl standardises `S` over tokens, so that long answers weigh more, and has `1e-6` for `Z`. All laws
hold but `baseline`: it divides by deviations. The rewards are attributes of the row. `reward` is not read: pass
`rewards=` of zeros, which makes the advantages.

`op.index(mask=..., attributes={"reward_1": ..., "reward_2": ...})` takes one number per row for each. For more rewards,
add terms to a copy of this file.
"""


grpo_rewards = Hierarchy(
    name="grpo_rewards",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group),
    gives_up={"baseline": "groups whose rewards differ less count for more"},
)
"""GRPO from rewards (Shao et al. 2024, 2402.03300): standardised in the prompt group, then PPO's gate as in `grpo`.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - mean)/(std + epsilon)` of the prompt group, over answers, with
`n - 1`; `μ = 1/(trajectories·T)`. verl's estimator `grpo` with `epsilon = 1e-6`, and TRL's `scale_rewards="group"` with
`1e-4`. A group of one gets 0 here, and its undivided reward in verl. Equal rewards get exactly 0, and up to 0.01 in
verl's `grpo_vectorized`, whose means are in float32. All laws hold but `baseline`: groups whose rewards differ less
count for more.
"""


share = Parameter("share", default=0.75, upper=1)
near = mean(reward, over=prompt_group, of=trajectory, others=True)
far = mean(reward, over=domain, of=trajectory, others=True)
hierarchical_grpo = Hierarchy(
    name="hierarchical_grpo",
    gates={token: pessimistic_clip_gate(low, dapo_high)},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(length),
    groups=[prompt_group, domain],
    advantages=reward - share * near - (1 - share) * far,
)
"""GRPO (Shao et al. 2024) with a hierarchy of baselines, ours: an answer beside its prompt group and its domain.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = R - share·b - (1-share)·d`, `b` the mean reward of the others in the
prompt group and `d` of the others in the domain, `μ = 1/(trajectories·length)`: a small group's mean is shrunk towards
the domain's. All laws hold: both means leave the answer out. A group or a domain of one is an error.
"""


pass_rate = mean(reward, over=prompt_group, of=trajectory)
maxrl = Hierarchy(
    name="maxrl",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group) / (maximum(pass_rate, 0) + 1e-6),
    gives_up={"baseline": "divided by a mean that the answer is part of"},
)
"""MaxRL (Tajwar et al. 2026, 2602.02710): rewards centred in the prompt group and divided by its mean, the pass rate.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (R - mean)/(mean + epsilon)` of the prompt group, over answers,
`μ = 1/tokens`. Rewards are 0 or 1, at least not negative: a prompt that few answers solve counts for more, as `1/p` in
the gradient of `log p`. The estimator `maxrl` of SkyRL and of the authors' fork of verl is this `A`, with
`epsilon = 1e-6`. A group without a right answer gets exactly 0; so does a group of one, which gets its undivided reward
in SkyRL. All laws hold but `baseline`: it divides by a mean that the answer is part of.
"""


opd = Hierarchy(
    name="opd",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    advantages=beta * (log_prob(teacher) - log_prob(old)),
    gives_up={
        "baseline": "the signal is the teacher's log-prob of the token",
        "baseline of what is left of advantages": "no reward is read",
    },
)
"""On-policy distillation (Thinking Machines 2025): a teacher's log-probs of the sampled tokens in place of a reward.

`J = Σ μ·r·A`, `A = beta·(log π_teacher - log π_old)` of the token, `μ = 1/tokens`: the negative reverse KL of one
sample, without a gradient. Tinker's recipe `on_policy_distillation` is this with `beta = kl_penalty_coef`,
`kl_discount_factor = 0` and `loss_fn = "importance_sampling"`, which sums over tokens. verl's distillation with
`loss_mode = "k1"` and `use_policy_gradient` has PPO's clip, and `log π` of each update in place of `log π_old`: equal
at the first update. On policy, this gradient is that of the penalty `beta·(log π - log π_teacher)²/2`. All laws hold
but `baseline`: no reward is read. Pass `rewards=` of zeros, which makes the advantages.
"""


opd_reward = Hierarchy(
    name="opd_reward",
    gates={token: identity_gate()},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group, leave_one_out=True) + beta * (log_prob(teacher) - log_prob(old)),
)
"""On-policy distillation beside a reward (Thinking Machines 2025): a teacher's log-probs added to centred rewards.

`J = Σ μ·r·A`, `A = R - mean` of the others in the prompt group `+ beta·(log π_teacher - log π_old)` of the token,
`μ = 1/tokens`. Tinker's recipe `on_policy_distillation` adds the two with `beta = kl_penalty_coef` and
`kl_discount_factor = 0`: rewards are centred in the group, times `G/(G - 1)`, which is this mean of the others. It sums
over tokens. All laws hold: the teacher's term is one more reward of the token, beside what rewards are compared with.
"""


opo = Hierarchy(
    name="opo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=reward - mean(reward, over=prompt_group),
    gives_up={
        "first_order": "a score estimator without a ratio",
        "baseline": "an answer's own length and reward are in what it is compared with",
    },
)
"""OPO (Hao et al. 2025, 2505.23585): the baseline of least variance, a mean in which long answers count for more.

`J = Σ μ·A·log π`, `A = R - Σ T·R/Σ T` over the prompt group, `T` the tokens of an answer, `μ = 1/trajectories`: exact
on policy, as the paper trains. The estimator `opo` of verl, which gives a group of one its reward. All laws hold but
`identity` and `first_order`, since it has no ratio, and `baseline`: the baseline contains the answer's own length and
reward.
"""


N = count(trajectory, over=prompt_group)
wrong = where(reward > 0.5, 0, 1)
M = total(wrong, over=prompt_group, of=trajectory)
# C(M,4)/C(N,4) and C(M-1,3)/C(N-1,3): falling products, which are 0 where there are too few to draw
others_wrong = (M - 1) * (M - 2) * (M - 3) / maximum((N - 1) * (N - 2) * (N - 3), 1)
all_wrong = mean(wrong, over=prompt_group, of=trajectory) * others_wrong
pass_at_k_spread = sqrt(maximum(all_wrong * (1 - all_wrong), 0)) + 1e-6
pass_at_k = Hierarchy(
    name="pass_at_k",
    gates={token: pessimistic_clip_gate(low, dapo_high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    groups=[prompt_group],
    advantages=where(reward > 0.5, all_wrong, all_wrong - others_wrong) / pass_at_k_spread,
    gives_up={"baseline": "groups whose chances are near 0 or 1 count for more"},
)
"""Pass@k training (Chen et al. 2025, 2508.10751): how much an answer raises the chance that one of `k = 4` is right.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` with the closed form over all sets of `k` answers to a prompt, `N` of which
`M` are wrong: `P = 1 - C(M,k)/C(N,k)`, `σ = sqrt(P·(1-P))`; right ones have `A = (1-P)/(σ + epsilon)`, wrong ones `(1 -
P - C(M-1,k-1)/C(N-1,k-1))/(σ + epsilon)`; `μ = 1/tokens`. Rewards above 1/2 are right. The formula is from the paper as
others cite it. All laws hold but `baseline`: it divides by a deviation.
"""


value = Attribute("value", on=token, positive=False)
gamma = Parameter("gamma", default=0.99, upper=1)
lam = Parameter("lam", default=0.95, upper=1)
# What a value is worth at later tokens telescopes: it comes as `γ·V` of one difference and goes as `V` of the next.
later = after(reward + (1 - lam) / lam * value, over=trajectory, discount=gamma * lam)
ppo_gae = Hierarchy(
    name="ppo_gae",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean(),
    advantages=reward - value + later,
    gives_up={"baseline": "later rewards count for less, for less variance"},
)
"""PPO with generalised advantages (Schulman et al. 2016, 1506.02438; 2017, 1707.06347) of the values of a critic.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A_t = Σ_{s>=t} (γ·λ)^(s-t)·(R_s + γ·V_{s+1} - V_s)` with `V = 0` past the
end, `μ = 1/tokens`. Rewards are per token; for a truncated trajectory, add `γ` times the value at its end to the last
reward. The estimator `gae` of verl whitens this over all tokens. All laws hold but `baseline`: later rewards count
less, which trades bias for variance.

`op.index(mask=..., attributes={"value": values})` takes a number per token. Bounds are strict: for a `γ` or a `λ` of 1
give `math.nextafter(1, 0)`.
"""


reinforce_pp_beta = Parameter("beta", default=0.001)
kl = log_prob(old) - log_prob(reference)
to_go = reward - reinforce_pp_beta * (kl + after(kl, over=trajectory))
reinforce_pp = Hierarchy(
    name="reinforce_pp",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    advantages=(to_go - mean(to_go, over=batch)) / sqrt(deviation(to_go, over=batch) ** 2 + 1e-8),
    gives_up={"baseline": "divided by a deviation of all tokens, the row's own among them"},
)
"""REINFORCE++ (Hu et al. 2025, 2501.03262): KL in the reward from each token on, whitened over all tokens.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = (G - mean)/sqrt(std² + epsilon)` over the tokens of the batch, `G_t =
R - beta·Σ_{s>=t} log(π_old/π_reference)`, `μ = 1/(trajectories·T)`. The estimator `reinforce_plus_plus` of verl is this
`A`; OpenRLHF's has the variance with `n`. Rewards are per row. All laws hold but `baseline`: advantages are divided by
a deviation, and the row is part of their mean.
"""


compared = centred(reward, over=prompt_group)
reinforce_pp_baseline = Hierarchy(
    name="reinforce_pp_baseline",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=trajectory_mean(),
    groups=[prompt_group],
    advantages=compared / (deviation(compared, over=batch, of=trajectory) + 1e-8),
    gives_up={"baseline": "divided by a deviation of all answers, the row's own among them"},
)
"""REINFORCE++ with a baseline (Hu et al. 2025, 2501.03262, appendix A): centred in the group, divided in the batch.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = C/(std C + epsilon)`, `C = R - mean` of the prompt group, its
deviation over all answers of the batch, `μ = 1/(trajectories·T)`. verl's `reinforce_plus_plus_baseline` whitens `C`
over tokens instead, so that long answers weigh more. All laws hold but `baseline`: it divides by a deviation.
"""


greedy = Attribute("greedy_reward", on=trajectory, positive=False)
remax = Hierarchy(
    name="remax",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    advantages=reward - greedy,
    gives_up={"first_order": "a score estimator without a ratio"},
)
"""ReMax (Li et al. 2023, 2310.10505): REINFORCE, where an answer is compared with the greedy one to its prompt.

`J = Σ μ·A·log π`, `A = R - b`, `b` the greedy answer's reward, an attribute of the row; `μ = 1/trajectories`. The
estimator `remax` of verl, where `R` is the sum of rewards from the token on: pass these. All laws hold but `identity`
and `first_order`: it has no ratio.

`op.index(mask=..., attributes={"greedy_reward": rewards})` takes one number per row.
"""


rloo = Hierarchy(
    name="rloo",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=centred(reward, over=prompt_group, leave_one_out=True),
    gives_up={"first_order": "a score estimator without a ratio"},
)
"""RLOO (Ahmadian et al. 2024, 2402.14740): REINFORCE, where an answer is compared with the others of its prompt.

`J = Σ μ·A·log π`, `A = R - mean` of the others in the prompt group, `μ = 1/trajectories`. The estimator `rloo` of verl,
which gives a group of one its reward; here that is an error. TRL's `RLOOTrainer` has PPO's clip of the whole
trajectory's ratio. All laws hold but `identity` and `first_order`: it has no ratio.
"""


rloo_kl_beta = Parameter("beta", default=0.03)
shaped = reward - rloo_kl_beta * total(log_prob(old) - log_prob(reference), over=trajectory)
rloo_kl = Hierarchy(
    name="rloo_kl",
    gates={token: zero_gate()},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(1).score(),
    groups=[prompt_group],
    advantages=centred(shaped, over=prompt_group, leave_one_out=True),
    gives_up={"first_order": "a score estimator without a ratio"},
)
"""RLOO with its KL in the reward (Ahmadian et al. 2024, 2402.14740): a trajectory's reward, minus its drift.

`J = Σ μ·A·log π`, `A = S - mean` of the others in the prompt group, `S = R - beta·Σ log(π_old/π_reference)` over the
trajectory, `μ = 1/trajectories`. TRL's `RLOOTrainer` subtracts the same from its rewards. All laws hold but `identity`
and `first_order`, as with `rloo`. In a reward k1 is right, because no gradient flows through it.
"""
