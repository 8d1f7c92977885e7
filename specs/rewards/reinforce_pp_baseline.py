"""REINFORCE++ with a baseline (Hu et al. 2025, 2501.03262, appendix A): centred in the group, divided in the batch.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)`, `A = C/(std C + epsilon)`, `C = R - mean` of the prompt group, its
deviation over all answers of the batch, `μ = 1/(trajectories·T)`. verl's `reinforce_plus_plus_baseline` whitens `C`
over tokens instead, so that long answers weigh more. All laws hold but `baseline`: it divides by a deviation.
"""

from fibration import (
    Hierarchy,
    Parameter,
    centred,
    deviation,
    pessimistic_clip_gate,
    ratio_deviation,
    reward,
    strata,
    trajectory_mean,
)

token, trajectory, prompt_group, batch = strata("token trajectory prompt_group batch")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)

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
