"""FiberPO over a tree: text tokens and image tokens of one trajectory, each with a clip of their own.

Ours, a tree as in rem:heterogeneous_fibration. With FiberPO's `g` and means `m`, on both sign channels:
`log 𝒢 = Σ± ±(g(m_group) + g(m_trajectory - m_group) + clip(x - m_trajectory, -ε, ε))`, where `ε` is that of the token's
kind. Both branches reflect together: every token of a trajectory has the same weight, of either kind.

All laws hold but `inward`: if the advantage is against the drift, roll-backs push further out, as in `fiberpo`.

`op.index(mask=..., image_token=image_mask, prompt_group=...)`: every other token is text.
"""

from fibration import (
    Fibration,
    Hierarchy,
    MarkovKernel,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    mass,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)

text_token, image_token, trajectory, prompt_group = strata("text_token image_token trajectory prompt_group")
T = count(text_token) + count(image_token)  # how many tokens of both kinds lie over an element
of_trajectory = count(text_token, over=trajectory) + count(image_token, over=trajectory)
text_epsilon = Parameter("epsilon_text", default=0.05)
image_epsilon = Parameter("epsilon_image", default=0.02)


def budget(level):  # one trust-region budget per level and sign channel, in nats of mean log ratio
    return Parameter(f"C_{level.name}", per_channel=True, default={"+": 0.2, "-": 0.1})


fiberpo_modal = Hierarchy(
    name="fiberpo_modal",
    fibrations=[
        Fibration(text_token, trajectory, kernel=MarkovKernel(1 / of_trajectory)),
        Fibration(image_token, trajectory, kernel=MarkovKernel(1 / of_trajectory)),
        Fibration(trajectory, prompt_group, kernel=uniform()),
    ],
    gates={
        prompt_group: aggregate_gate(budget(prompt_group), rollback=T).per(mass),
        trajectory: aggregate_gate(budget(trajectory), rollback=T).per(mass),
        text_token: clip_gate(text_epsilon).per(mass),
        image_token: clip_gate(image_epsilon).per(mass),
    },
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean(),
    gives_up={"inward": "roll-backs read drift alone, and reverse inward pulls"},
)
