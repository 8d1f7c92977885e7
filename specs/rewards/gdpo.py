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

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    deviation,
    mean,
    pessimistic_clip_gate,
    ratio_deviation,
    strata,
    token_mean,
)

token, trajectory, prompt_group, batch = strata("token trajectory prompt_group batch")
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
first, second = (Attribute(f"reward_{n}", on=trajectory, positive=False) for n in (1, 2))
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
    advantages=alone(weights[0] * alone(first, prompt_group) + alone(second, prompt_group) * weights[1], batch),
    gives_up={
        "baseline": "each reward is divided by its deviation, and their sum by that of the batch",
        "baseline of what is left of advantages": "the rewards are attributes, and reward is not read",
    },
)
