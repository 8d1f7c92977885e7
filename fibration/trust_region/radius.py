"""Trust-region radii that need no batch: TRPO's, and the one that GSPO's clipping threshold implies."""

from __future__ import annotations

import torch
from torch import Tensor

from fibration.trust_region.tokens import number_in


def trpo_radius(gamma: float | Tensor) -> Tensor:
    """`δ^TRPO = (1-γ)/(8γ)` (eq:delta_trpo): float64, the shape of `gamma`.

    At `γ = 1` it is exactly 0, which is the vanishing theorem (thm:trpo_vanishing): the only policy in the trust region
    is the old one. As `γ` falls to 0 it grows without bound. It bounds `D̂_TV` of every sampled state (eq:dtv_mc, mean
    `|r - 1|`), as the penalty of eq:sample_tv_trpo_obj is in that estimator; the total variation of eq:dtv_def that it
    allows is half of it.

    `gamma`: a number or a tensor of them, `0 < γ ≤ 1`. Raises `ParameterError`.
    """
    g = number_in("gamma", gamma, "0 < gamma <= 1", (0, 1), "(]")
    return (1 - g) / (8 * g)


def gspo_radius(epsilon: float | Tensor, first_order: bool = True) -> Tensor:
    """The total variation that a GSPO threshold roughly keeps to: `√(ε/2)` (claim:gspo_tv). float64, as `epsilon`.

    Keeping the trajectory's aggregate ratio above `1-ε` keeps its KL estimate below `-log(1-ε)` (app:gspo_tv_proof),
    and by Pinsker (eq:pinsker) and Jensen the trajectory-normalised total variation is at most `√(-log(1-ε)/2)`; that
    bound is returned with `first_order=False`, the claim's `-log(1-ε) ≈ ε` is taken otherwise.

    This is total variation *with* its ½ (eq:dtv_def): compare `tv_trajectory_mean`, which has none, with twice the
    radius. It is exact for the population (`exact_mean`) and a rough guide for a batch: a clip limits the objective and
    not the policy, and one trajectory's KL estimate may be negative.

    `epsilon`: a number or a tensor of them, `0 ≤ ε < 1`. Raises `ParameterError`.
    """
    e = number_in("epsilon", epsilon, "0 <= epsilon < 1: GSPO keeps the ratio above 1 - epsilon", (0, 1), "[)")
    return torch.sqrt((e if first_order else -torch.log1p(-e)) / 2)


def gspo_threshold(delta: float | Tensor) -> Tensor:
    """The GSPO threshold `ε = 2δ²` for a radius (app:apc_obj_to_gspo, step 4): the inverse of `gspo_radius`.

    `delta`: total variation with its ½ (eq:dtv_def), `0 ≤ δ < √½`; step 4 of the paper inserts the estimator without
    it, which Pinsker's inequality does not cover (it gives `ε = δ²/2` there). float64, the shape of `delta`. Raises
    `ParameterError`.
    """
    rule = "0 <= delta < sqrt(1/2), as the threshold 2*delta^2 must stay below 1"
    return 2 * number_in("delta", delta, rule, (0, 0.5**0.5), "[)") ** 2
