"""APC-Obj (app:apc_obj_rgf, app:apc_obj_equiv): each ratio is gated by the budget that the state's other tokens leave.

The clip of def:apc_obj_gating limits `|Δ|` to `T_s δ - (Σ of |Δ| over the other tokens of the state)`. The code writes
this limit as `|Δ| - e`, with the state's *excess* `e = (Σ over all its tokens of |Δ|) - T_s δ`. If `e ≤ 0`, the state
is within its budget and its tokens pass bit for bit. Otherwise every deviation of the state shrinks by `e`, but not
past 0.

The sum runs over the tokens of the same *state*, as in def:apc_obj_main. The displays eq:apc_obj_equiv_obj,
eq:apc_obj_rgf, eq:apc_obj_gating and eq:apc_obj_discounted_obj write the whole sample; the proofs do not.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from fibration.errors import BatchError
from fibration.trust_region.maximiser import unit_maximiser
from fibration.trust_region.tokens import Elements, Tokens, discount, discount_weights, first, of_states, radius

CONSTRAINT_TOLERANCE = 1e-6  # relative to the mean |u| of a state: the rounding of float32 deviations after centring
CONSTRAINT_FLOOR = 1e-12  # absolute, for a state whose deviations are rounding alone: equal ratios near 1


class Regime(IntEnum):
    """What the gate does to a token (app:apc_obj_zones)."""

    MASKED = -1
    PASSED = 0  # (P): the state is within its budget
    ROLLED_BACK = 1  # (R): clipped, but not to 0
    ZEROED = 2  # (Z): the other tokens alone spend the budget


def _excess(deviation: Tensor, states: Elements, delta: float) -> Tensor:
    """The excess of each token's state over its budget: float64 [n], 0 within the budget."""
    return (states.total(deviation.abs()) - states.counts.double() * delta).clamp(min=0)[states.of_token]


def _gate(deviation: Tensor, states: Elements, delta: float) -> Tensor:
    excess = _excess(deviation, states, delta)
    # Branches, so that value, slope and `apc_regimes` take the same side of every edge.
    clipped = torch.where(deviation.abs() > excess, deviation.sign() * (deviation.abs() - excess), 0.0)
    return torch.where(excess > 0, clipped, deviation)


def _projected(deviation: Tensor, states: Elements, delta: float) -> Tensor:
    gated = _gate(deviation, states, delta)
    return gated - states.mean(gated)[states.of_token]


def apc_gate(deviation: Tensor, state: Tensor, delta: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns clipped deviations: `𝒢(u) = clip(u, T_s(δ - D̂_TV(s,u)) + |u|)` (def:clip_proj).

    - `deviation`: floating point `r - 1`, [N] or any one shape.
    - `state`: integers of the same shape.
    - `delta`: the radius δ ≥ 0, one number, in the units of eq:dtv_mc (the mean of `|r - 1|`).
    - `mask`: booleans, or 0 and 1.

    The result is float64 of the same shape, 0 under the mask, and differentiable in `deviation`. Its slope is 1 within
    the budget and on its edge. Raises `BatchError` (values, shapes), `HierarchyIndexError` (ids, a mask that keeps no
    token) and `ParameterError`.
    """
    tokens, states = of_states("deviation", deviation, state, mask)
    return tokens.spread(_gate(tokens.numbers("deviation", deviation), states, radius(delta)), 0.0)


def apc_gated_ratio(log_ratio: Tensor, state: Tensor, delta: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns gated ratios: `1 + clip(r - 1, T_s δ - Σ of |r - 1| over the state's other tokens)` (def:apc_obj_gating).

    The paper's display sums over the whole sample; the code sums over the tokens of the same state, as the proofs do.
    A gated ratio lies between 1 and the ratio, so it is positive.

    `log_ratio`: floating point, in nats. The result is float64 of the same shape, 1 under the mask, and differentiable.
    Other arguments and errors as `apc_gate`.
    """
    tokens, states = of_states("log_ratio", log_ratio, state, mask)
    return tokens.spread(1 + _gate(tokens.deviations(log_ratio), states, radius(delta)), 1.0)


def apc_regimes(log_ratio: Tensor, state: Tensor, delta: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the regime of every token (eq:zone_P, eq:zone_R, eq:zone_Z): int64 `Regime` values, in the same shape.

    - `PASSED`: all tokens of a state with `D̂_TV(s) ≤ δ`.
    - `ROLLED_BACK`: in any other state, tokens with `|r - 1|/T_s > D̂_TV(s) - δ`.
    - `ZEROED`: the remaining tokens.
    - `MASKED` (-1): masked tokens.

    Arguments and errors as `apc_gated_ratio`.
    """
    tokens, states = of_states("log_ratio", log_ratio, state, mask)
    deviation = tokens.deviations(log_ratio).detach()
    excess = _excess(deviation, states, radius(delta))
    regimes = torch.where(deviation.abs() > excess, int(Regime.ROLLED_BACK), int(Regime.ZEROED))
    regimes = torch.where(excess > 0, regimes, int(Regime.PASSED))
    return tokens.spread(regimes, int(Regime.MASKED))


def apc_objective(
    log_ratio: Tensor, advantages: Tensor, state: Tensor, delta: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """Returns `Ĵ^(APC-Obj)`: the mean over all tokens of gated ratio times advantage (def:apc_obj, def:apc_obj_rgf).

    Maximise it. It is float64, 0-d, and differentiable in `log_ratio`, with gradient `A/T` on policy. The cross-token
    sum in the clip runs over the same state. For `delta` pass `apc_radius(...)`, which follows the equivalence proof,
    or a positive constant, the paper's relaxation (rem:trust_region_design). `advantages`: floating point, of the shape
    of `log_ratio`. Other arguments and errors as `apc_gated_ratio`.
    """
    tokens, states = of_states("log_ratio", log_ratio, state, mask)
    gated = _gate(tokens.deviations(log_ratio), states, radius(delta)) + 1
    return (gated * tokens.numbers("advantages", advantages)).mean()


def _weighted(tokens: Tokens, states: Elements, terms: Tensor, step: Tensor, gamma: float | Tensor) -> Tensor:
    """The paper's discounted mean: `1/((1-γ)Γ) Σ_s Γ(s)/T_s Σ over the tokens of s`."""
    g = discount(gamma, below_one=True)
    return (discount_weights(tokens, states, step, g) * states.mean(terms)).sum() / (1 - g)


def apc_objective_discounted(
    log_ratio: Tensor,
    advantages: Tensor,
    state: Tensor,
    step: Tensor,
    delta: float | Tensor,
    gamma: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Returns `Ĵ^(APC-Obj)` with states weighted by discounted frequency (def:apc_obj_discounted): float64, 0-d.

    `(1-γ)` times this objective tends to `apc_objective` as `γ` tends to 1. The cross-token sum runs over the same
    state, though the paper's display sums over the whole sample. `step`: integers, the time step of every token
    (`steps(offsets)`); `gamma`: `0 < γ < 1`. Other arguments and errors as `apc_objective`.
    """
    tokens, states = of_states("log_ratio", log_ratio, state, mask)
    gated = _gate(tokens.deviations(log_ratio), states, radius(delta)) + 1
    return _weighted(tokens, states, gated * tokens.numbers("advantages", advantages), step, gamma)


def apc_surrogate(
    deviation: Tensor,
    advantages: Tensor,
    state: Tensor,
    step: Tensor,
    delta: float | Tensor,
    gamma: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Returns the surrogated objective `j^(APC-Obj)(Δ, δ)` (def:surrogated_apc_obj): float64, 0-d, differentiable.

    It is `apc_objective_discounted` minus the correction `𝒞(Δ)_s·A`: `𝒞` is the mean clipped deviation of a state
    (eq:correction_term). It equals `apc_objective_discounted` if advantages are centred per state
    (lem:apc_obj_equiv_surrogate). The paper prints a free `δ` in the clip and δ^(APC-Obj) in the correction, and uses
    them as equal; here they are one argument.

    `deviation`: floating point `r - 1`. Other arguments and errors as `apc_objective_discounted`.
    """
    tokens, states = of_states("deviation", deviation, state, mask)
    clipped = _gate(tokens.numbers("deviation", deviation), states, radius(delta))
    correction = states.mean(clipped)[states.of_token]
    values = tokens.numbers("advantages", advantages)
    return _weighted(tokens, states, clipped * values + (1 - correction) * values, step, gamma)


def apc_projected_objective(
    deviation: Tensor,
    advantages: Tensor,
    state: Tensor,
    step: Tensor,
    delta: float | Tensor,
    gamma: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Returns the surrogate in projection form, `Σ weights·[proj(𝒢(Δ))·A + A]` (eq:apc_obj_proj_form): float64, 0-d.

    Equal to `apc_surrogate` for all deviations. Over deviations that satisfy the probability constraint its maximum is
    that of TV-TRPO (thm:apc_obj_trpo_equiv); other deviations can exceed that maximum. Arguments and errors as
    `apc_surrogate`.
    """
    tokens, states = of_states("deviation", deviation, state, mask)
    projected = _projected(tokens.numbers("deviation", deviation), states, radius(delta))
    return _weighted(tokens, states, (projected + 1) * tokens.numbers("advantages", advantages), step, gamma)


def retract(deviation: Tensor, state: Tensor, delta: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns `proj(𝒢(u))`: deviations that are gated, then centred per state (def:clip_proj, lem:retraction).

    For deviations with mean 0 over the tokens of every state the result has `D̂_TV(s) ≤ δ`. In a state where `u`
    exceeds δ it is strictly less; in any other state the result is `u` itself, to rounding. Strictness needs `δ > 0`, a
    condition that the lemma omits: at `δ = 0` everything becomes 0. The projection subtracts the mean of `𝒢(u)`.
    def:clip_proj prints `𝒞(𝒢(u))`, which by eq:correction_term gates once more; `𝒢(u)` is within the budget, so a
    second gate changes nothing.

    `deviation`: floating point `r - 1` with mean 0 per state, to rounding (see `centred`). Returns float64 of the same
    shape, 0 under the mask, differentiable. Other arguments and errors as `apc_gate`. A state that breaks the
    constraint raises `BatchError`.
    """
    tokens, states = of_states("deviation", deviation, state, mask)
    u = tokens.numbers("deviation", deviation)
    mean, scale = states.mean(u).detach(), states.mean(u.abs()).detach()
    broken = first(mean.abs() > CONSTRAINT_TOLERANCE * scale + CONSTRAINT_FLOOR)
    if broken is not None:
        raise BatchError(
            f"the deviations of state {int(states.ids[broken])} have mean {float(mean[broken]):g}",
            required="mean 0 over the tokens of every state (eq:ratio_sum_identity); the lemma bounds no others",
            remedy="pass centred(deviation, state, mask)",
        )
    return tokens.spread(_projected(u, states, radius(delta)), 0.0)


def apc_maximiser(
    advantages: Tensor,
    state: Tensor,
    delta: float | Tensor,
    action: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Returns the deviation that maximises APC-Obj under the probability constraint: `δ·Δ̂*` (thm:apc_obj_trpo_equiv).

    At `δ = apc_radius(...)` it is `tv_trpo_maximiser(...).deviation`; any other radius is the paper's relaxation. Among
    several maximisers it is the smallest, as def:apc_obj_discounted requires. `1 + δ·Δ̂* ≥ 0` is not required. Returns
    float64 of the shape of `advantages`, 0 under the mask. Arguments and errors as `unit_maximiser`; also
    `ParameterError`.
    """
    return radius(delta) * unit_maximiser(advantages, state, action, mask).deviation
