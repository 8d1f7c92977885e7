"""APC-Obj (def:apc_obj, eq:apc_obj_gating): a total-variation budget per state, spent by all its tokens together.

A token's deviation is clipped to the part of the budget `T_s·δ` that the other tokens at its state leave: `clip(Δ,
±(T_s·δ - Σ_{others} |r - 1|)^+)`. The token's gate reads the density of its state, in both sign channels; the state's
own gate adds nothing. All laws hold but `identity`: a single gate is not the identity. All gates together are, as long
as no state exceeds its budget.

`op.index(mask=..., state=ids)` takes one id per token, equal where the prefix is equal.
"""

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    count,
    decomposition,
    density,
    expm1,
    gated,
    maximum,
    minimum,
    residual,
    strata,
    token_log_ratio,
    token_mean,
    uniform,
    where,
    zero_gate,
)

token, state = strata("token state")
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
