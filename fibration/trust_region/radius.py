"""Trust-region radii that need no batch: TRPO's, and the one that GSPO's clipping threshold implies."""

from __future__ import annotations

import torch
from torch import Tensor

from fibration.trust_region.tokens import number_in


def trpo_radius(gamma: float | Tensor) -> Tensor:
    """Returns TRPO's radius `δ^TRPO = (1-γ)/(8γ)` (eq:delta_trpo): float64, in the shape of `gamma`.

    At `γ = 1` the radius is exactly 0: only the old policy lies in the trust region (thm:trpo_vanishing). As `γ` falls
    to 0 it grows without bound. It bounds `D̂_TV` of every sampled state (eq:dtv_mc, mean `|r - 1|`), because the
    penalty of eq:sample_tv_trpo_obj uses that estimator. The total variation of eq:dtv_def may be half the radius.

    `gamma`: a number or a tensor of them, `0 < γ ≤ 1`. Raises `ParameterError`.
    """
    g = number_in("gamma", gamma, "0 < gamma <= 1", (0, 1), "(]")
    return (1 - g) / (8 * g)


def gspo_radius(epsilon: float | Tensor, first_order: bool = True) -> Tensor:
    """Returns the total variation that a GSPO threshold roughly allows: `√(ε/2)` (claim:gspo_tv), as float64.

    An aggregate ratio of the trajectory above `1-ε` has a KL estimate below `-log(1-ε)` (app:gspo_tv_proof). By Pinsker
    (eq:pinsker) and Jensen the trajectory-normalised total variation is then at most `√(-log(1-ε)/2)`. With
    `first_order=False` the function returns that bound; otherwise it takes the claim's `-log(1-ε) ≈ ε`.

    The radius is total variation *with* its ½ (eq:dtv_def). `tv_trajectory_mean` has no ½: compare it with twice the
    radius. The radius is exact for the population (`exact_mean`) and a rough guide for a batch, because a clip limits
    the objective and not the policy, and the KL estimate of one trajectory may be negative.

    `epsilon`: a number or a tensor of them, `0 ≤ ε < 1`. Raises `ParameterError`.
    """
    e = number_in("epsilon", epsilon, "0 <= epsilon < 1: GSPO keeps the ratio above 1 - epsilon", (0, 1), "[)")
    return torch.sqrt((e if first_order else -torch.log1p(-e)) / 2)


def gspo_threshold(delta: float | Tensor) -> Tensor:
    """Returns the GSPO threshold `ε = 2δ²` for a radius (app:apc_obj_to_gspo, step 4): the inverse of `gspo_radius`.

    `delta`: total variation with its ½ (eq:dtv_def), `0 ≤ δ < √½`. Step 4 of the paper inserts the estimator without
    the ½. Pinsker's inequality does not cover that: for the estimator it gives `ε = δ²/2`. float64, the shape of
    `delta`. Raises `ParameterError`.
    """
    rule = "0 <= delta < sqrt(1/2), as the threshold 2*delta^2 must stay below 1"
    return 2 * number_in("delta", delta, rule, (0, 0.5**0.5), "[)") ** 2
