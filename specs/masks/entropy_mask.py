"""The 80/20 rule (Wang et al. 2025, 2506.01939): PPO's gate on the tokens of highest entropy, the others dropped.

`J = Σ μ·min(r·A, clip(r, 1-low, 1+high)·A)` over tokens with `entropy >= quantile(entropy, level)`, the quantile over
the batch, `μ = 1/tokens` of all tokens. `entropy` is an attribute of the token: that of the distribution it was sampled
from, in nats. TRL's `top_entropy_quantile = 1 - level` takes the entropies of each update, and the quantile of each
micro-batch over all ranks: the same at a first update of one micro-batch. All laws hold but `mask_open`, as tokens are
dropped on policy too, and `causal`: the quantile reads later tokens.

`op.index(mask=..., attributes={"entropy": entropies})` takes one number per token.
"""

from fibration import (
    Attribute,
    Hierarchy,
    Parameter,
    pessimistic_clip_gate,
    quantile,
    ratio_deviation,
    strata,
    token_mean,
)

token, batch = strata("token batch")
entropy = Attribute("entropy", on=token, positive=False, lower=0)
low = Parameter("epsilon_low", default=0.2, upper=1)
high = Parameter("epsilon_high", default=0.2)
level = Parameter("level", default=0.8, upper=1)

entropy_mask = Hierarchy(
    name="entropy_mask",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),
    objective=token_mean().keep(entropy >= quantile(entropy, level, over=batch)),
    gives_up={
        "mask_open": "tokens of low entropy are dropped on policy too",
        "causal": "the quantile is one of all tokens of the batch",
    },
)
