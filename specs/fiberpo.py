"""Fibration Policy Optimization: a budget for every level of a hierarchy."""

from fibration import (
    Fibration,
    Hierarchy,
    MarkovKernel,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    mass,
    proportional,
    signed_log_ratio,
    strata,
    token_mean,
    trajectory_mean,
    uniform,
)

token, trajectory, prompt_group, domain, batch = strata("token trajectory prompt_group domain batch")
text_token, image_token, turn, expert, modality = strata("text_token image_token turn expert modality")
epsilon = Parameter("epsilon", default=0.05)
fiberpo_domain_inward_clip_epsilon = Parameter("epsilon", default=0.2)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo = Hierarchy(
    name="fiberpo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: aggregate_gate(budget(trajectory), rollback=count(token)),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
"""FiberPO (def:fiberpo_main): a budget on each trajectory's drift per sign channel, a clip on each token's deviation.

`log 𝒢 = Σ± ±(g(m±) + clip(x± - m±, -ε, ε))`: `x+` and `x-` are `|log r|` by its sign, `m±` their means over the
trajectory, and `g` passes up to the budget `C±`, rolls back with slope `-T`, then zeroes (eq:gagg_main).

All laws hold but `inward`: `g` reads the drift alone. An outward pull is pulled back. An inward pull is a ratio above 1
with `A < 0`, or below 1 with `A > 0`. In the strip beyond the budget `g` reverses it, `T` times as hard, and beyond the
strip `g` stops it. `fiberpo_inward` lets it pass. In a study `fiberpo` collapsed under large steps, and was never
better than `grpo` (docs/which-loss-when.md).
"""


T = count(token)  # how many tokens lie over an element
M = count(trajectory)  # how many trajectories lie over an element
fiberpo_crossed = Hierarchy(
    name="fiberpo_crossed",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, domain, kernel=uniform()),
        Fibration(trajectory, modality, kernel=uniform()),
        Fibration(domain, batch, kernel=proportional(M)),
        Fibration(modality, batch, kernel=proportional(M)),
    ],
    gates={
        batch: aggregate_gate(budget(batch), rollback=T).per(mass),
        domain: aggregate_gate(budget(domain), rollback=T).per(mass),
        modality: aggregate_gate(budget(modality), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        token: clip_gate(epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean(),
    orthogonalise="projection",
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
"""FiberPO over a quiver: a trajectory has a domain and a modality, each with a budget for its own drift.

Ours, a quiver as in rem:heterogeneous_fibration. With FiberPO's `g` and means `m`, on both sign channels:
`log 𝒢 = Σ± ±(g(m) + g(e_domain) + g(e_modality) + g(ρ) + clip(x - m_trajectory, -ε, ε))`, where `ρ = m_trajectory - m -
e_domain - e_modality`. Domain and modality share the batch's `m`, so nothing is gated twice. They rarely cross in equal
proportions, so least squares separates their effects `e` (`orthogonalise="projection"`). An index that does not
separate them is refused. All laws hold but `inward`: if the advantage is against the drift, roll-backs push further
out, as in `fiberpo`.
"""


fiberpo_domain = Hierarchy(
    name="fiberpo_domain",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(M)),
    ],
    gates={
        domain: aggregate_gate(budget(domain), rollback=T).per(M),
        prompt_group: aggregate_gate(budget(prompt_group), rollback=T).per(M),
        trajectory: aggregate_gate(budget(trajectory), rollback=T),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
"""FiberPO-Domain (def:domain_fiberpo): a trust-region budget per level and sign channel, a clip on the rest.

Tokens deviate from their trajectory, trajectories from their prompt group, groups from their domain. Each deviation has
a gate of its own, so one domain's drift does not spend another's budget. With FiberPO's `g`, and `m` the means over a
trajectory's tokens and a group's or a domain's trajectories, on both sign channels: `log 𝒢 = Σ± ±(g(m_domain) +
g(m_group - m_domain) + g(m_trajectory - m_group) + clip(x - m_trajectory, -ε, ε))`. All laws hold but `inward`: if `A`
is against the drift, a level reverses the inward pull, `T` times as hard, as in `fiberpo`. `fiberpo_domain_inward` does
not. In a study `fiberpo_domain` collapsed under large steps, and was never better than `grpo`
(docs/which-loss-when.md).
"""


fiberpo_domain_inward = Hierarchy(
    name="fiberpo_domain_inward",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(M)),
    ],
    gates={
        domain: aggregate_gate(budget(domain), rollback=1).per(M).inward(),
        prompt_group: aggregate_gate(budget(prompt_group), rollback=1).per(M).inward(),
        trajectory: aggregate_gate(budget(trajectory), rollback=1).inward(),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
"""FiberPO-Domain whose gates act only if the pull leads further from 0.

Ours, def:domain_fiberpo with `gate.inward()` and roll-backs of slope 1:
`log 𝒢 = Σ± ±(h(m_domain) + h(m_group - m_domain) + h(m_trajectory - m_group) + k(x - m_trajectory))`, where `h` and `k`
are FiberPO's `g` and clip wherever the pull has the sign of the residual, and pass it unchanged elsewhere. On tokens
and trajectories the pull is `±A`; on prompt groups and domains it is `±Σ μ·A·r` over their tokens, detached, since
advantages with mean 0 have no pull of their own there. So no level reverses or stops a pull towards residual 0. For a
trajectory residual 0 is its group's mean (docs/how-laws-are-decided.md). All laws hold. `log 𝒢` has no bound, because
inward pulls are never cut. In a study real domains scored no better than shuffled ones (docs/which-loss-when.md).
"""


fiberpo_domain_inward_clip = Hierarchy(
    name="fiberpo_domain_inward_clip",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(trajectory, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(M)),
    ],
    gates={
        domain: clip_gate(budget(domain)).per(M).inward(),
        prompt_group: clip_gate(budget(prompt_group)).per(M).inward(),
        trajectory: clip_gate(budget(trajectory)).inward(),
        token: clip_gate(fiberpo_domain_inward_clip_epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
"""FiberPO-Domain with clips instead of roll-backs, each acts only if its element is pulled further from 0.

Ours, def:domain_fiberpo with `gate.inward()` and a clip at every budget:
`log 𝒢 = Σ± ±(h(m_domain) + h(m_group - m_domain) + h(m_trajectory - m_group) + k(x - m_trajectory))`, where `h` and `k`
clip wherever the pull has the sign of the residual (as in `fiberpo_domain_inward`), and pass it unchanged elsewhere.
No level has a falling slope. All laws hold. `log 𝒢` has no bound, because inward pulls are never cut.
"""


fiberpo_experts = Hierarchy(
    name="fiberpo_experts",
    fibrations=[
        Fibration(token, trajectory, kernel=uniform()),
        Fibration(token, expert, kernel=uniform()),
        Fibration(trajectory, batch, kernel=proportional(T)),
        Fibration(expert, batch, kernel=proportional(T)),
    ],
    gates={
        batch: aggregate_gate(budget(batch), rollback=T).per(mass),
        expert: aggregate_gate(budget(expert), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        token: clip_gate(epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=token_mean(),
    gives_up={
        "orthogonality": "experts and trajectories cross as the router decides",
        "inward": "roll-backs read drift alone, and reverse inward pulls",
    },
)
"""FiberPO for mixtures of experts: a token has a trajectory and an expert, which cross each other.

Ours, a quiver as in rem:heterogeneous_fibration. With FiberPO's `g` and means `m` over tokens, on both sign channels:
`log 𝒢 = Σ± ±(g(m) + g(m_expert - m) + g(m_trajectory - m) + clip(x - m_expert - m_trajectory + m, -ε, ε))`. Experts
serve trajectories as the router decides, never in equal proportions, and there are too many trajectories for least
squares. All laws hold but `orthogonality` and `inward`: a token's residual is not quite orthogonal to either stratum,
and if the advantage is against the drift, roll-backs push further out, as in `fiberpo`.

`op.index(mask=..., expert=ids)` takes one id per token, from 0. A negative id, which in most data means none, is
refused unless the token is masked.
"""


fiberpo_inward = Hierarchy(
    name="fiberpo_inward",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: aggregate_gate(budget(trajectory), rollback=1).inward(),
        token: clip_gate(epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
"""FiberPO whose gates act only if the advantage pulls a residual further from 0.

Ours, def:fiberpo_main with `gate.inward()`, and the roll-back's slope 1 instead of `T`:
`log 𝒢 = Σ± ±(h(m±) + k(x± - m±))`, where `h` and `k` are FiberPO's `g` and clip wherever `±A` has the sign of the
residual, and pass it unchanged elsewhere. So a ratio above 1 comes down if `A < 0`, as in PPO. All laws hold. `log 𝒢`
has no bound, because inward pulls are never cut.
"""


fiberpo_inward_clip = Hierarchy(
    name="fiberpo_inward_clip",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={
        trajectory: clip_gate(budget(trajectory)).inward(),
        token: clip_gate(fiberpo_domain_inward_clip_epsilon).per(1 / count(token, over=trajectory)).inward(),
    },
    decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
    objective=trajectory_mean(),
)
"""FiberPO with clips instead of roll-backs, each acts only if the advantage pulls a residual further from 0.

Ours, after def:fiberpo_main:
`log 𝒢 = Σ± ±(h(m±) + k(x± - m±))`, with FiberPO's means, where `h` clips at the budget `C±` and `k` at `ε` wherever
`±A` has the sign of the residual, and pass it unchanged elsewhere: PPO's `min`, per trajectory and per token. All
laws hold. `log 𝒢` has no bound, because inward pulls are never cut.
"""


of_both = count(text_token) + count(image_token)  # how many tokens of both kinds lie over an element
of_trajectory = count(text_token, over=trajectory) + count(image_token, over=trajectory)
text_epsilon = Parameter("epsilon_text", default=0.05)
image_epsilon = Parameter("epsilon_image", default=0.02)
fiberpo_modal = Hierarchy(
    name="fiberpo_modal",
    fibrations=[
        Fibration(text_token, trajectory, kernel=MarkovKernel(1 / of_trajectory)),
        Fibration(image_token, trajectory, kernel=MarkovKernel(1 / of_trajectory)),
        Fibration(trajectory, prompt_group, kernel=uniform()),
    ],
    gates={
        prompt_group: aggregate_gate(budget(prompt_group), rollback=of_both).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=of_both).per(mass),
        text_token: clip_gate(text_epsilon).per(mass),
        image_token: clip_gate(image_epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
"""FiberPO over a tree: text tokens and image tokens of one trajectory, each with a clip of their own.

Ours, a tree as in rem:heterogeneous_fibration. With FiberPO's `g` and means `m`, on both sign channels:
`log 𝒢 = Σ± ±(g(m_group) + g(m_trajectory - m_group) + clip(x - m_trajectory, -ε, ε))`, where `ε` is that of the token's
kind. Both branches reflect together: every token of a trajectory has the same weight, of either kind.

All laws hold but `inward`: if the advantage is against the drift, roll-backs push further out, as in `fiberpo`.

`op.index(mask=..., image_token=image_mask, prompt_group=...)`: every other token is text.
"""


fiberpo_turns = Hierarchy(
    name="fiberpo_turns",
    fibrations=[
        Fibration(token, turn, kernel=uniform()),
        Fibration(turn, trajectory, kernel=proportional(T)),
        Fibration(trajectory, prompt_group, kernel=uniform()),
    ],
    gates={
        prompt_group: aggregate_gate(budget(prompt_group), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        turn: aggregate_gate(budget(turn), rollback=T).per(mass),
        token: clip_gate(epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
"""FiberPO for agents: tokens deviate from turns, turns from trajectories, trajectories from their prompt groups.

Ours, a chain as in def:fgh (rem:base_extensibility). With FiberPO's `g` and means `m`, on both sign channels:
`log 𝒢 = Σ± ±(g(m_group) + g(m_trajectory - m_group) + g(m_turn - m_trajectory) + clip(x - m_turn, -ε, ε))`. Turns are
weighed by their tokens, so that a trajectory's drift is the mean over its tokens, as in FiberPO. All laws hold but
`inward`: if the advantage is against the drift, roll-backs push further out, as in `fiberpo`.

`op.index(mask=..., turn=ids, prompt_group=...)` takes one turn per token, numbered through the batch.
"""
