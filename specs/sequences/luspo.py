"""LUSPO (2026, 2602.05261): GSPO with every trajectory weighed by its length, so that long answers are not worth less.

`J = Σ μ·min(s·A, clip(s, 1-low, 1+high)·A)`, `μ = 1/trajectories` for every token, `s = exp(mean log r)` of the
trajectory. TRL ships it as `luspo`, with `importance_sampling_level="sequence"`; without that it is another loss. All
laws hold but `identity` and `first_order`, as in GSPO.
"""

from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    constant_normaliser,
    count,
    log_clip_gate,
    log_ratio,
    strata,
    uniform,
    zero_gate,
)

token, trajectory = strata("token trajectory")
low = Parameter("epsilon_low", default=0.002, upper=1)
high = Parameter("epsilon_high", default=0.0025)

luspo = Hierarchy(
    name="luspo",
    fibrations=[Fibration(token, trajectory, kernel=uniform())],
    gates={trajectory: log_clip_gate(low, high), token: zero_gate()},
    decomposition=log_ratio(scale=1 / count(token, over=trajectory)),
    objective=constant_normaliser(1),
    gives_up={"first_order": "one ratio per trajectory: what single tokens do beyond their mean is dropped"},
)
