"""GRPO (Shao et al. 2024) with a hierarchy of baselines, ours: an answer beside its prompt group and its domain.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = R - share·b - (1-share)·d`, `b` the mean reward of the others in the
prompt group and `d` of the others in the domain, `μ = 1/(trajectories·length)`: a small group's mean is shrunk towards
the domain's. All laws hold: both means leave the answer out. A group or a domain of one is an error.
"""

from fibration import (
    Hierarchy,
    Parameter,
    constant_normaliser,
    mean,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    strata,
)

token, trajectory, prompt_group, domain = strata("token trajectory prompt_group domain")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.28)
length = Parameter("length", default=1024)  # usually the longest response allowed, in tokens
share = Parameter("share", default=0.75, upper=1)

near = mean(reward, over=prompt_group, of=trajectory, others=True)
far = mean(reward, over=domain, of=trajectory, others=True)

hierarchical_grpo = Hierarchy(
    name="hierarchical_grpo",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=constant_normaliser(length),
    groups=[prompt_group, domain],
    advantages=reward - share * near - (1 - share) * far,
)
