"""Sample-based TV-TRPO (app:sample_tv_trpo): its objective, and its maximiser in closed form.

For a state with advantages `A` and a given total variation, the best deviation takes half of the budget from the worst
actions and gives the same to the best. So the unit problem needs a maximum and a minimum per state, and no solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fibration.errors import BatchError
from fibration.trust_region.tokens import (
    Elements,
    PerElement,
    Tokens,
    discount,
    discount_weights,
    elements,
    first,
    of_states,
)


@dataclass(frozen=True, eq=False)
class UnitMaximiser:
    """The solution of the unit problem (eq:unit_tv_max).

    `deviation` float64, the shape of the advantages, 0 under the mask: `Δ̂*`. `value`: `M(s)` per state.
    """

    deviation: Tensor
    value: PerElement


@dataclass(frozen=True, eq=False)
class TvTrpoMaximiser:
    """The maximiser of TV-TRPO (thm:tv_trpo_max).

    `deviation` float64, the shape of the advantages, 0 under the mask: `Δ* = t*·Δ̂*`. `radius` 0-d: `t*`, the `D̂_TV`
    of every state that `Δ*` moves. `value` 0-d: `M`, the mean of `M(s)/T_s` under the state weights.
    """

    deviation: Tensor
    radius: Tensor
    value: Tensor


def unit_maximiser(
    advantages: Tensor, state: Tensor, action: Tensor | None = None, mask: Tensor | None = None
) -> UnitMaximiser:
    """Returns the deviation of estimated total variation 1 that gains most at every state (eq:unit_tv_max).

    Per state, `Σ n Δ = 0` and `Σ n|Δ| = T_s` hold. So the actions with the largest advantage gain `T_s/2`, those with
    the smallest lose `T_s/2`, and `M(s) = T_s (max A - min A)/2`. Ties share in proportion to `n_{s,a}`. That is the
    paper's rule, the smallest `Σ_a Δ_a²` over the *distinct* actions (def:sample_tv_trpo). A state with one action, or
    with equal advantages, has no unit deviation or no gain. The rule gives `Δ̂* = 0` and `M(s) = 0` for it
    (thm:tv_trpo_max).

    Neither the paper's problem nor this function requires `1 + Δ ≥ 0`: a large radius on many samples of a state can
    give a negative ratio. Check `deviation > -1` before you read the result as a policy.

    - `advantages`: floating point, [N] or any one shape.
    - `state`, `action`: integers of the same shape. Tokens of one (state, action) pair share a ratio and must have one
      advantage. Without `action` every token is a pair of its own.
    - `mask`: booleans, or 0 and 1.

    Raises `BatchError` (values, shapes, two advantages of a pair) and `HierarchyIndexError` (ids, a mask that keeps no
    token).
    """
    tokens, states = of_states("advantages", advantages, state, mask)
    deviation, value = _unit(tokens, advantages, states, action)
    return UnitMaximiser(tokens.spread(deviation, 0.0), states.per_element(value))


def _unit(tokens: Tokens, advantages: Tensor, states: Elements, action: Tensor | None) -> tuple[Tensor, Tensor]:
    """`Δ̂*` per unmasked token and `M(s)` per state."""
    values = tokens.numbers("advantages", advantages).detach()
    multiplicity = _pair_counts(tokens, values, states, action)
    n = len(states.ids)
    high = values.new_full((n,), -torch.inf).scatter_reduce(0, states.of_token, values, "amax")
    low = values.new_full((n,), torch.inf).scatter_reduce(0, states.of_token, values, "amin")
    moves = (high > low)[states.of_token]
    half = states.counts.double() / 2
    deviation = torch.zeros_like(values)
    for extreme, sign in ((high, 1.0), (low, -1.0)):
        # Σ over pairs of n² is the sum over tokens of n, as a pair has n tokens.
        tied = torch.where(moves & (values == extreme[states.of_token]), multiplicity, 0.0)
        share = half / states.total(tied).clamp(min=1.0)
        deviation = deviation + sign * tied * share[states.of_token]
    return deviation, half * (high - low)


def _pair_counts(tokens: Tokens, values: Tensor, states: Elements, action: Tensor | None) -> Tensor:
    """`n_{s,a}` of every token's pair: float64 [n]."""
    if action is None:
        return torch.ones_like(values)
    actions = tokens.elements("action", action)
    pairs = elements(states.of_token * len(actions.ids) + actions.of_token)
    largest = values.new_full((len(pairs.ids),), -torch.inf).scatter_reduce(0, pairs.of_token, values, "amax")
    token = first(largest[pairs.of_token] != values)
    if token is not None:
        s, a = int(states.ids[states.of_token[token]]), int(actions.ids[actions.of_token[token]])
        raise BatchError(
            f"state {s} with action {a} has two advantages",
            required="one advantage per (state, action) pair, as its tokens share one ratio",
            found=f"{float(values[token]):g} at {tokens.place(token)} and {float(largest[pairs.of_token[token]]):g}",
            remedy="pass the mean over the pair's tokens, or leave `action` out",
        )
    return pairs.counts.double()[pairs.of_token]


def apc_radius(
    advantages: Tensor,
    state: Tensor,
    step: Tensor,
    gamma: float | Tensor,
    action: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Returns `δ^(APC-Obj) = (1-γ)/(8γ‖A‖_∞)·M`, with `M` the mean of `M(s)/T_s` under `Γ(s)/Γ`: float64, 0-d.

    The code follows def:apc_obj_discounted and the equivalence proof, where the radius equals `t*` of thm:tv_trpo_max.
    The main text and def:apc_obj print `(1-γ)²/(8γ‖A‖_∞)·M/T`. That differs by a factor `(1-γ)/T` from the proof's
    result for this `M`, and with it APC-Obj would not make TV-TRPO's update.

    The radius lies in `[0, trpo_radius(γ)]` (lem:apc_obj_tr) and is in the units of eq:dtv_mc. It is 0 at `γ = 1`. It
    is also 0 for all-zero advantages, where the formula is 0/0 and no deviation gains anything.

    `step`: integers, the time step t of every token (`steps(offsets)` for packed tokens); `gamma`: `0 < γ ≤ 1`. Other
    arguments and errors as `unit_maximiser`; also `ParameterError`.
    """
    return tv_trpo_maximiser(advantages, state, step, gamma, action, mask).radius


def tv_trpo_maximiser(
    advantages: Tensor,
    state: Tensor,
    step: Tensor,
    gamma: float | Tensor,
    action: Tensor | None = None,
    mask: Tensor | None = None,
) -> TvTrpoMaximiser:
    """Returns the maximiser of `tv_trpo_objective` under the probability constraint: `Δ* = t*·Δ̂*` (thm:tv_trpo_max).

    `t* = (1-γ)/(8γ‖A‖_∞)·M`. Among several maximisers it is the one that def:sample_tv_trpo selects (see
    `unit_maximiser`), so states without gain do not move. At `γ = 1` nothing moves: the limit of the formula, and
    thm:trpo_vanishing. `1 + Δ* ≥ 0` is not required.

    Arguments and errors as `apc_radius`.
    """
    tokens, states = of_states("advantages", advantages, state, mask)
    g = discount(gamma)
    unit, value = _unit(tokens, advantages, states, action)
    weights = discount_weights(tokens, states, step, g)
    mean_value = (weights * value / states.counts).sum()
    norm = tokens.numbers("advantages", advantages).detach().abs().max()
    radius = torch.where(norm > 0, (1 - g) / (8 * g) * mean_value / torch.where(norm > 0, norm, 1.0), 0.0)
    return TvTrpoMaximiser(tokens.spread(radius * unit, 0.0), radius, mean_value)


def tv_trpo_objective(
    deviation: Tensor,
    advantages: Tensor,
    state: Tensor,
    step: Tensor,
    gamma: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Returns the reduced objective `j(Δ)` of sample-based TV-TRPO (eq:j_delta): float64, 0-d, differentiable.

    `Σ_s Γ(s)/((1-γ)Γ)·(mean of Δ·A over the tokens of s)` minus `4γ‖A‖_∞/(1-γ)²` times the square of the largest
    `D̂_TV(s)`. It is eq:sample_tv_trpo_obj up to a constant. As in that equation, the penalty uses the estimator
    without ½, so it is four times the penalty of the bound eq:trpo_bound_app.

    `deviation`: floating point `r - 1`, of the shape of `advantages`. The theorem covers deviations with mean 0 over
    the tokens of every state (eq:ratio_sum_identity); `centred` makes them. `gamma`: `0 < γ < 1`. Other arguments and
    errors as `apc_radius`.
    """
    tokens, states = of_states("deviation", deviation, state, mask)
    g = discount(gamma, below_one=True)
    delta = tokens.numbers("deviation", deviation)
    values = tokens.numbers("advantages", advantages)
    weights = discount_weights(tokens, states, step, g)
    gain = (weights * states.mean(delta * values)).sum() / (1 - g)
    worst = states.mean(delta.abs()).max()
    return gain - 4 * g * values.abs().max() / (1 - g) ** 2 * worst**2


def centred(values: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns `values` minus their mean over the tokens of their state: float64, of their shape, 0 under the mask.

    Centred deviations satisfy the probability constraint (eq:ratio_sum_identity), centred advantages satisfy
    eq:adv_centering. Both are standing assumptions of app:apc_obj_equiv_notation. Differentiable in `values`. Arguments
    and errors as `unit_maximiser`.
    """
    tokens, states = of_states("values", values, state, mask)
    numbers = tokens.numbers("values", values)
    return tokens.spread(numbers - states.mean(numbers)[states.of_token], 0.0)
